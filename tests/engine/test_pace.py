"""Chunked prefill between rounds, and scoring of drafters after prefill."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise.controller.goodput import Goodput
from draftwise.drafters.retrieval import RetrievalSession
from draftwise.drafters.session import NeuralSession
from draftwise.engine.drafting import FIRST_PIECE, IDLE_S, LARGEST_PIECE, LEAST_PIECE, PrefillBudget
from engine.pairs import POOLS, PROMPTS, plain_greedy, speculator
from engine.test_engine import LONG, ask, run


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of rows of each probe of a model."""
    seen: list[int] = []
    sound = NeuralSession.probe

    def probe(self: Any, contexts: Any) -> Any:
        seen.append(len(contexts))
        return sound(self, contexts)

    monkeypatch.setattr(NeuralSession, "probe", probe)
    return seen


def test_a_piece_takes_half_a_round() -> None:
    prefill_budget = PrefillBudget()
    first = prefill_budget.budget(is_idle=True), prefill_budget.budget(is_idle=False)
    assert first == (FIRST_PIECE, LEAST_PIECE)
    prefill_budget.rounds.append(0.1)
    prefill_budget.record(100, 0.1)
    assert prefill_budget.budget(is_idle=False) == 50
    prefill_budget.record(LEAST_PIECE // 2 - 1, 1e-9)
    assert prefill_budget.budget(is_idle=False) == 50, "a few tokens say nothing"


def test_a_long_prompt_alone_leaves_room_for_newcomers() -> None:
    prefill_budget = PrefillBudget()
    prefill_budget.record(100, 0.2)
    assert prefill_budget.budget(is_idle=True) == round(IDLE_S / 0.002)
    prefill_budget.tokens.extend([1e-6] * 9)
    assert prefill_budget.budget(is_idle=True) == LARGEST_PIECE
    prefill_budget.tokens.extend([1.0] * 9)
    assert prefill_budget.budget(is_idle=True) == LEAST_PIECE


def paced(monkeypatch: pytest.MonkeyPatch, budget: int) -> Any:
    """An engine whose chunks have ``budget`` tokens."""
    made = speculator(["lookup"], "fixed:1", lengths=(3,))
    engine = made.engine()
    monkeypatch.setattr(engine._prefill_budget, "budget", lambda is_idle: budget)
    return made, engine


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("size", [2, 9, 30])
def test_a_short_prompt_does_not_wait_for_a_long_one(
    monkeypatch: pytest.MonkeyPatch, others: int, size: int
) -> None:
    """Its first token comes within three steps, and the long prompt goes on meanwhile."""
    made, engine = paced(monkeypatch, 64)
    for _ in range(others):
        engine.admit(ask(made, PROMPTS[0], 100))
        engine.step()
    text = (LONG * 40)[:400]
    engine.admit(long := ask(made, text, 4))
    engine.step()
    engine.admit(short := ask(made, PROMPTS[2][:size], 12))
    for _ in range(3):
        engine.step()
    assert short.answer.num_tokens > 0
    assert long in engine._prefilling
    before = engine._prefill_scheduler._num_left(long)
    engine.step()
    assert engine._prefill_scheduler._num_left(long) <= before - 32
    run(engine)
    assert long.tokens == plain_greedy(text, 4)
    assert short.tokens == plain_greedy(PROMPTS[2][:size], 12)


def test_short_prompts_without_end_starve_no_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made, engine = paced(monkeypatch, 32)
    text = (LONG * 40)[:300]
    engine.admit(long := ask(made, text, 2))
    for number in range(60):
        engine.admit(ask(made, [1 + number % 5, 7, *PROMPTS[2][:20]], 1 + number % 2))
        engine.step()
        if long.answer.num_tokens:
            break
    assert number <= 2 * 300 // 16 + 2
    run(engine)
    assert long.tokens == plain_greedy(text, 2)


def test_prompts_that_arrive_together_start_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made, engine = paced(monkeypatch, 40)
    requests = [ask(made, [n + 1, *PROMPTS[0][:30]], 4) for n in range(5)]
    for request in requests:
        engine.admit(request)
    engine.step()
    assert all(request.answer.num_tokens for request in requests)


def test_a_pause_of_the_machine_lets_no_long_piece_through() -> None:
    prefill_budget = PrefillBudget()
    for _ in range(5):
        prefill_budget.rounds.append(0.1)
        prefill_budget.record(100, 0.1)
    prefill_budget.rounds.append(60.0)
    assert prefill_budget.budget(is_idle=False) == 50


def test_rows_that_begin_together_are_looked_at_together(looks: list[int]) -> None:
    """Each drafter scores all rows in one forward instead of one per row."""
    engine = (made := speculator(POOLS["all"], "ucb1")).engine()
    prompts = [PROMPTS[0], PROMPTS[2], PROMPTS[3]]
    requests = [ask(made, prompt, 6, policy="ucb1") for prompt in prompts]
    for request in requests:
        engine.admit(request)
    engine.step()
    assert looks[:2] == [3, 3]
    run(engine)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.tokens == plain_greedy(prompt, 6)


def test_a_newcomer_has_one_look_while_others_write(
    looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Goodput, "drafters_to_probe", lambda self, num_rows=1: ["good", "bad"])
    engine = (made := speculator(POOLS["all"], "goodput")).engine()
    engine.admit(ask(made, PROMPTS[0], 40))
    engine.step()
    assert looks[:2] == [1, 1], "alone it has all of them"
    looks.clear()
    engine.guard.probe_s = 0.0  # they are paid for
    engine._prefill_budget.tokens.append(0.0)  # the whole prompt at once
    engine.admit(late := ask(made, PROMPTS[2], 6))
    with torch.inference_mode():
        engine._schedule()
        engine._prefill()
    assert looks == [1]
    run(engine)
    assert late.tokens == plain_greedy(PROMPTS[2], 6)


def test_a_next_turn_reads_only_what_is_new_for_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = (made := speculator(["lookup"], "fixed:1", lengths=(3,))).engine()
    engine.admit(first := ask(made, LONG, 8))
    run(engine)
    pushed: list[int] = []
    sound = RetrievalSession.crop

    def crop(self: Any, context: Any, length: int) -> None:
        sound(self, context, length)
        pushed.append(len(context.tokens) - self._rows[context.row].length)

    monkeypatch.setattr(RetrievalSession, "crop", crop)
    text = [*LONG, *first.tokens, 3, 1, 4]
    engine.admit(second := ask(made, text, 8))
    run(engine)
    assert pushed == [3]
    assert second.tokens == plain_greedy(text, 8)
    other = [*LONG[:-1], 1 + LONG[-1] % 5, 7, 7]
    engine.admit(third := ask(made, other, 8))
    run(engine)
    assert pushed == [3, len(other)], "of another text nothing is kept"
    assert third.tokens == plain_greedy(other, 8)
