"""Chunked prefill between rounds, and scoring of drafters after prefill."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise.drafters import NeuralSession, RetrievalSession
from draftwise.engine import LARGEST_PIECE, LEAST_PIECE, PrefillBudget
from draftwise.policies.goodput import Goodput
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
    assert (prefill_budget.budget(is_idle=True), prefill_budget.budget(is_idle=False)) == (
        LARGEST_PIECE,
        LEAST_PIECE,
    )
    prefill_budget.rounds.append(0.1)
    prefill_budget.record(100, 0.1)
    assert prefill_budget.budget(is_idle=False) == 50
    prefill_budget.record(LEAST_PIECE // 2 - 1, 1e-9)
    assert prefill_budget.budget(is_idle=False) == 50, "a few tokens say nothing"


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
