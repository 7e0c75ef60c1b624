"""Drafters catch up on long texts outside of drafting, in chunks between rounds."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.drafters.session import NeuralSession
from draftwise.engine.drafting import FEW, LEAST_PIECE
from draftwise.types import Decision
from engine.pairs import POOLS, PROMPTS, plain_greedy, speculator
from engine.test_engine import LONG, ask, run

FAR = [*LONG, *LONG[::-1], *LONG][:150]
"""A prompt of several prefill chunks."""


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the tokens that sessions catch up on, one entry per call and row."""
    seen: list[int] = []
    sound = NeuralSession.catch_up

    def catch_up(self: Any, contexts: Any, most: int) -> Any:
        seen.extend(min(most, self.num_uncached_tokens(context)) for context in contexts)
        return sound(self, contexts, most)

    monkeypatch.setattr(NeuralSession, "catch_up", catch_up)
    return seen


@pytest.mark.parametrize("pool", ["good", "good+lookup"])
def test_a_long_newcomer_is_read_in_pieces_while_others_write(pool: str, pieces: list[int]) -> None:
    made = speculator(POOLS[pool], "fixed:1", lengths=(3,))
    engine = made.engine()
    writer, long = ask(made, PROMPTS[0], 60), ask(made, FAR, 12)
    engine.admit(writer)
    engine.step()
    engine.admit(long)
    waited = 0
    while long.stats.num_rounds < 5 or long.decider.pending is not None:
        engine._loop._verify_s = 0.0  # the minimum budget for catching up
        engine.step()
        if long.decider.pending is not None:
            waited += 1
            assert long.stats.pulls == {"none": long.stats.num_rounds}
            assert long.stats.no_draft == {"catch-up": long.stats.num_rounds}
    far = len(FAR) - 1 - FEW
    assert waited == -(-far // LEAST_PIECE), "what is left is read with the draft"
    assert set(pieces) == {LEAST_PIECE}
    run(engine)
    assert long.tokens == plain_greedy(FAR, 12)
    assert writer.tokens == plain_greedy(PROMPTS[0], 60)
    assert set(long.stats.pulls) > {"none"}


def test_alone_it_is_read_at_once_and_priced_apart(pieces: list[int]) -> None:
    made = speculator(POOLS["good"], "fixed:1", lengths=(3,))
    engine, request = made.engine(), ask(made, FAR, 12)
    engine.admit(request)
    run(engine)
    assert pieces == [len(FAR) - 1]
    assert request.tokens == plain_greedy(FAR, 12)
    again = ask(made, [5, *FAR], 12)
    engine.admit(again)
    run(engine)
    costs = engine._loop.costs([again])
    assert set(costs.read_s) == {"good"}
    assert 0.0 < costs.read_s["good"] < costs.draft_s["good"]


def test_what_was_chosen_is_learnt_when_it_was_played() -> None:
    made = speculator(POOLS["good"], "ucb1", lengths=(3,))
    engine = made.engine()
    writer, long = ask(made, PROMPTS[0], 60), ask(made, FAR, 12, policy="ucb1")
    learnt: list[Decision] = []
    num_waits, sound = 0, long.decider.policy.learn

    def learn(decision: Decision, feedback: Any) -> None:
        learnt.append(decision)
        sound(decision, feedback)

    long.decider.policy.learn = learn  # type: ignore[method-assign]
    engine.admit(writer)
    engine.step()
    engine.admit(long)
    played = []
    while not long.is_over:
        engine._loop._verify_s = 0.0
        (made_round,) = [o.round for o in engine.step() if o.request == long.id] or [None]
        if long.decider.pending is not None:
            num_waits += 1
        elif made_round is not None:
            played.append(made_round.plan_index)
    assert num_waits > 0
    assert len(learnt) < len(played) + num_waits
    assert [decision.plan for decision in learnt[-len(played) :]] == played
    assert long.tokens == plain_greedy(FAR, 12)
