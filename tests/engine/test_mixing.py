"""Drafts by several drafters: the text is the same whatever the source of each token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.controller.goodput import Goodput
from draftwise.drafters.drawing import without_replacement
from draftwise.drafters.protocol import Context
from draftwise.engine import loop
from draftwise.engine.loop import Loop
from draftwise.engine.outputs import Round
from draftwise.speculator import Speculator
from draftwise.types import NONE, Costs, RoundFacts, SamplingParams, TreeShape
from engine.pairs import PROMPTS, drafters, plain_greedy, speculator
from engine.scripted import Alternating, mixing
from engine.test_lossless_greedy import assert_greedy
from engine.test_lossless_sampled import LEVEL, SAMPLING, VOCAB, smallest_p_value
from models import CONFIGS
from sessions import opened

RETRIEVAL = ["lookup", "suffix", "datastore"]


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_text_is_the_target_s(kind: str, num_rows: int) -> None:
    for length in (1, 12):
        made = speculator(["good", "bad", *RETRIEVAL], kind=kind, lengths=(12,))
        assert_greedy(mixing(made, "good", length), num_rows, kind)


@pytest.mark.parametrize(("host", "sampling"), [("good", "all"), ("bad", "plain")])
def test_sampled_text_has_the_law_of_the_target(host: str, sampling: str) -> None:
    made = speculator([host, "lookup"], vocab_size=VOCAB, lengths=(3,))
    assert smallest_p_value(mixing(made, host, 3), SAMPLING[sampling]) > LEVEL


@pytest.mark.parametrize("num_rows", [1, 4])
def test_heads_mix_and_carry_siblings(num_rows: int) -> None:
    made = speculator(["eagle", "lookup"], lengths=(12,))
    assert_greedy(mixing(made, "eagle", 12), num_rows, "llama")


@pytest.mark.parametrize("host", ["bad", "eagle"])
def test_branches_of_copied_tokens_are_accepted(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings above must verify branches and accept some of them."""
    made = mixing(speculator([host, "lookup"], vocab_size=VOCAB, lengths=(6,)), host, 6)
    num, sound = Counter[str](), loop.departure

    def departure(draft: Any, path: Any) -> int:
        copied = {n for n in range(draft.num_chain, len(draft)) if draft.sources[n] == "lookup"}
        num.update(drafted=len(copied), kept=len(copied & {*path.tolist()}))
        return sound(draft, path)

    monkeypatch.setattr(loop, "departure", departure)
    for seed in range(20):
        made.generate([1, 2, 3, 1, 2, 3, 1, 2], max_new_tokens=40, seed=seed, temperature=1.0)
    assert num["drafted"] > 30, num
    assert num["kept"] > 3, num


@pytest.mark.parametrize("sampling", ["all", "plain"])
def test_sampled_heads_with_siblings_have_the_law_of_the_target(sampling: str) -> None:
    made = speculator(["eagle", "lookup"], vocab_size=VOCAB, lengths=(4,))
    assert smallest_p_value(mixing(made, "eagle", 2), SAMPLING[sampling]) > LEVEL


def test_siblings_are_drawn_without_replacement_each_from_what_is_left() -> None:
    """Each q is the previous one without the token drawn; when no mass is left, q is token 0."""
    q = torch.tensor([0.0, 0.5, 0.3, 0.2, 0.0])
    tokens, qs = without_replacement(q, torch.tensor(1), np.array([0.1, 0.5, 0.9]))
    assert tokens.tolist() == [2, 3, 0]
    torch.testing.assert_close(qs[0], torch.tensor([0.0, 0.0, 0.6, 0.4, 0.0]))
    torch.testing.assert_close(qs[1], torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]))
    assert qs[2].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_rounds_say_who_wrote_what() -> None:
    made = mixing(speculator(["good", "lookup"], lengths=(8,)), "good", 8)
    rounds = list(made.start(PROMPTS[0], max_new_tokens=120))
    writers: Counter[str] = Counter()
    for round_ in rounds:
        writers.update(round_.sources)
        if round_.plan.drafter == NONE:
            assert round_.num_drafted == 0
        else:
            assert round_.plan.length <= round_.num_drafted
        assert set(round_.sources) <= {"good", "lookup", "target"}
    assert min(writers["good"], writers["lookup"]) > 3
    assert {round_.plan.rule for round_ in rounds} == {"fixed", "mixed"}


def cheap(made: Speculator) -> Speculator:
    """Lower the costs of drafting: with measured costs these tiny models would not draft."""
    costs = {drafter.name: 0.001 if drafter.retrieves else 0.05 for drafter in made._pool.drafters}
    made._pool.cost_model.costs = lambda rows, num, *_: Costs(np.ones(num), costs)  # type: ignore[method-assign]
    made._pool.guard.balance = 1.0
    made._pool.guard.observe = lambda *_: None  # type: ignore[method-assign]
    return made


def test_the_default_policy_mixes_alone_and_in_company() -> None:
    made = cheap(speculator(["good", "lookup"], "goodput", lengths=(1, 2, 4, 8)))
    alone = [r.plan for r in made.start(PROMPTS[0], max_new_tokens=160)]
    assert any(plan.rule == "mixed" for plan in alone)
    together = [r.plan for r in made.start(PROMPTS[:1] * 3, max_new_tokens=60) if r.batch_size > 1]
    assert any(plan.rule == "mixed" for plan in together)
    unmixed = cheap(speculator(["good", "lookup"], "goodput:mix=false", lengths=(1, 2, 4, 8)))
    assert not any(r.plan.rule == "mixed" for r in unmixed.start(PROMPTS[0], max_new_tokens=160))


@pytest.mark.parametrize("pool", ["good+lookup", "eagle+good+lookup"])
def test_rounds_that_only_decode_change_no_token_and_are_learnt_later(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard closes and opens: drafts follow rounds that drafters and policy did not see."""
    made = speculator(pool.split("+"), "goodput", lengths=(1, 4), num_prefixes=0)
    costs = {"eagle": 0.05, "good": 0.05, "lookup": 0.001}
    made._pool.cost_model.costs = lambda rows, num, *_: Costs(np.ones(num), costs)  # type: ignore[method-assign]
    guard, seen = made._pool.guard, list[int]()

    def observe(*_: float) -> None:
        """Twenty rounds open, twenty closed."""
        guard.balance = 1.0 if len(rounds) % 40 < 20 else -math.inf

    guard._is_open, guard.balance = True, 1.0
    guard.tuning = replace(guard.tuning, overdraft=0.0)  # these drafts promise much
    guard.observe = observe  # type: ignore[method-assign]
    sound = Goodput.read

    def read(self: Goodput, evidence: RoundFacts) -> None:
        if evidence.seconds > 0:
            seen.extend(evidence.tokens)
        sound(self, evidence)

    monkeypatch.setattr(Goodput, "read", read)
    rounds: list[Round] = []
    generation = made.start(PROMPTS[0], max_new_tokens=200)
    for round_ in generation:
        rounds.append(round_)
    (result,) = generation.results()
    assert result.tokens == plain_greedy(PROMPTS[0], 200)
    assert result.tokens[: len(seen)] == seen
    assert len(result.tokens) - len(seen) < 8
    drafted = [bool(round_.num_drafted) for round_ in rounds]
    assert any(drafted[:20])
    assert any(drafted[40:])
    known = [bool(round_.matches) for round_ in rounds[21:40]]
    assert 2 <= sum(known) <= 3, known  # of 19 rounds, every eighth


def test_first_and_far_longer_texts_begin_with_plain_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain decoding is measured before drafts are priced, without changing tokens."""
    monkeypatch.setattr("draftwise.controller.costs.FAR_TOKENS", 16)
    made = cheap(speculator(["good", "lookup"], "goodput", lengths=(1, 4)))
    for prompt, num_plain in (([7], 2), (PROMPTS[0] * 8, 2), (PROMPTS[0] * 8, 0)):
        rounds = list(made.start(prompt, max_new_tokens=30))
        known = [bool(round_.matches) for round_ in rounds]
        assert known[:3] == [False] * num_plain + [True] * (3 - num_plain)
        (result,) = (made.generate([prompt], max_new_tokens=30),)
        assert result[0].tokens == plain_greedy(prompt, 30)


def resting(made: Speculator, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Open and close the guard at random; count the rounds that only decode, and the others."""
    made, rng, seen = cheap(made), np.random.default_rng(0), Counter[str]()
    guard, sound_rests, sound_verify = made._pool.guard, Loop._rests, loop.verify_batch

    def rests(self: Loop, requests: Sequence[Any]) -> str:
        guard.balance = 1.0 if rng.random() < 0.5 else -math.inf
        found = sound_rests(self, requests)
        seen["rests" if found else "searches"] += 1
        return found

    def verify_batch(states: Sequence[Any]) -> None:
        drafted = any(len(state.draft) for state in states)
        seen["drafts after a rest"] += bool(drafted and seen["rests"])
        sound_verify(states)

    guard._is_open = True
    monkeypatch.setattr(Loop, "_rests", rests)
    monkeypatch.setattr(loop, "verify_batch", verify_batch)
    return seen


@pytest.mark.parametrize(
    ("reason", "balance", "doubted_s", "num_idle", "num_steps"),
    [
        ("measure", -1.0, 2.0, 1, 1),
        ("idle", 1.0, 0.0, 640, 1),
        ("guard", -math.inf, 0.0, 1, 1),  # nothing is searched
        ("guard", -math.inf, 0.0, 1, 7),  # what is searched promises too little
        ("", 1.0, 0.0, 1, 1),
    ],
)
def test_a_round_that_the_guard_keeps_from_drafting_says_why(
    reason: str, balance: float, doubted_s: float, num_idle: int, num_steps: int
) -> None:
    made = cheap(speculator(["good", "lookup"], "goodput", lengths=(1, 4)))
    made._pool.cost_model.is_unmeasured = lambda *_: False  # type: ignore[method-assign]
    guard, generation = made._pool.guard, made.start(PROMPTS[0], max_new_tokens=60)
    for _ in range(8):
        next(generation)
    guard._is_open = True
    guard.balance, guard._doubted_s = balance, doubted_s
    guard.num_idle, guard.num_steps = num_idle, num_steps
    found = next(generation)
    assert found.no_draft == reason
    assert bool(found.num_drafted) == (reason == "")


@pytest.mark.parametrize("pool", ["good+lookup", "eagle+good+lookup"])
def test_batches_of_which_some_rounds_only_decode_are_greedy(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = speculator(pool.split("+"), "goodput", lengths=(1, 4))
    seen = resting(made, monkeypatch)
    for _ in range(3):  # later batches reuse the rows of earlier ones
        assert_greedy(made, 4)
    assert min(seen[kind] for kind in ("rests", "searches", "drafts after a rest")) > 3, seen


@pytest.mark.parametrize(
    ("pool", "sampling"),
    [("good+lookup", "plain"), ("eagle+lookup", "all"), ("bad+suffix", "plain")],
)
def test_rounds_that_only_decode_leave_the_law_of_sampled_batches(
    pool: str, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = speculator(pool.split("+"), "goodput", vocab_size=VOCAB, lengths=(1, 3))
    seen = resting(made, monkeypatch)
    assert smallest_p_value(made, SAMPLING[sampling]) > LEVEL
    assert min(seen[kind] for kind in ("rests", "searches", "drafts after a rest")) > 3, seen


@pytest.mark.parametrize("name", RETRIEVAL)
def test_a_peek_is_what_reading_the_draft_would_have_found(name: str) -> None:
    """The match after text and draft equals that of a session whose text includes the draft."""
    (drafter,) = drafters([name])
    text = PROMPTS[0] + PROMPTS[3] + [5, 9]
    context = Context(0, list(text), SamplingParams(), None)  # type: ignore[arg-type]
    session = opened(drafter, [context])
    for drafted in ([], [33], [33, 5], [33, 5, 9], [40], [62, 63], [40, 41, 42, 40]):
        longer = Context(0, text + drafted, SamplingParams(), None)  # type: ignore[arg-type]
        expected = opened(drafter, [longer]).peek(longer, [])
        match, token = session.peek(context, drafted)
        assert match == expected[0]
        assert (token == expected[1]) or match == 0


@pytest.mark.parametrize(
    ("pool", "tree"),
    [
        (["lookup"], None),
        (["good", "lookup"], None),
        (["datastore"], TreeShape(4, 16)),
        (["suffix"], TreeShape(4, 16)),
        (["good"], TreeShape(4, 16)),
        (["eagle"], TreeShape(4, 16)),
    ],
)
def test_nothing_that_is_looked_up_or_grown_breaks_a_form(
    monkeypatch: pytest.MonkeyPatch, pool: list[str], tree: TreeShape | None
) -> None:
    prompt = [3, 5, 4, 4, 6, 3, 5, 4, 7, 9] * 4
    held = SamplingParams(process=Alternating())
    drafted: list[bool] = []
    sound = loop.verify_batch

    def watched(turns: Sequence[Any]) -> None:
        for turn in turns:
            text = [*turn.draft.tokens.tolist(), turn.context.tokens[-1]]
            parents = [turn.draft.parent(node) for node in range(len(turn.draft))]
            drafted.extend(text[a] % 2 == text[b] % 2 for a, b in enumerate(parents))
        sound(turns)

    monkeypatch.setattr(loop, "verify_batch", watched)
    made = speculator(pool, "fixed:1", lengths=(6,), trees=(tree,))
    made = mixing(made, "good", 6) if len(pool) > 1 else made
    found = made.generate(prompt, max_new_tokens=80, sampling=[held])
    assert len(drafted) > 20
    assert not any(drafted)
    plainly = speculator(pool, "fixed:0").generate(prompt, max_new_tokens=80, sampling=[held])
    assert found.tokens == plainly.tokens
