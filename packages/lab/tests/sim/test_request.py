"""Rounds of a simulated request, by hand, and the contract of Evidence."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import COSTS, check_evidence, tiny_text

from draftwise.registry import make_stop_rule
from draftwise.types import NONE, Plan
from draftwise_lab.sim.request import MAX_BACKLOG, SimulatedRequest
from draftwise_lab.sim.text import PROMPT_TOKENS, Text, Track, runs_of

NOTHING = Plan(NONE, 0)
A, B, R = Plan("a", 4), Plan("b", 2), Plan("r", 4)


def new_request(text: Text | None = None) -> SimulatedRequest:
    return SimulatedRequest(text or tiny_text(), [NOTHING, A, B, R], COSTS, {})


def test_a_round_by_hand() -> None:
    """``a`` drafts 4, the coins accept 2 (positions 0, 1), the third is rejected."""
    request = new_request()
    evidence = request.play(A)
    check_evidence(evidence)
    assert (evidence.num_drafted, evidence.num_accepted, evidence.num_emitted) == (4, 2, 3)
    assert evidence.emitted_start == PROMPT_TOKENS
    assert request.position == 3
    assert evidence.seconds == 4 * 0.25 + 3.0  # 5 tokens: 1, 1.5, 2, then 0.5 more for each
    assert evidence.drafted_alphas.tolist() == [0.5 + j / 1024 for j in range(4)]
    assert evidence.scores["a"].start == PROMPT_TOKENS - 2
    assert len(evidence.scores["a"].alphas) == 2 + 3  # the prompt's, and up to the rejection
    assert set(evidence.scores) == {"a", "r"}  # scoring by retrieval is free, by b costs a forward
    assert evidence.matches == {"r": 4}  # at position 3


def test_backlog_is_scored_when_a_drafter_plays_again() -> None:
    request = new_request()
    request.play(A)  # positions 0 to 2, unscored by b
    evidence = request.play(B)  # position 3: rejected at once
    check_evidence(evidence)
    assert (evidence.num_drafted, evidence.num_accepted) == (2, 0)
    assert evidence.scores["b"].start == PROMPT_TOKENS - 2
    assert len(evidence.scores["b"].alphas) == 2 + 4
    evidence = request.play(A)  # a's backlog: position 3, then 4, 5, 6 of its draft
    assert evidence.scores["a"].start == PROMPT_TOKENS + 3
    assert evidence.num_drafted == 3  # the limit of 8 leaves a position for the bonus token
    assert len(evidence.scores["a"].alphas) == 4
    assert request.is_done


def test_retrieval_drafts_what_it_has() -> None:
    request = new_request()
    evidence = request.play(R)
    assert (evidence.num_drafted, evidence.seconds) == (0, 1.0)  # no match: a plain round
    assert len(evidence.drafted_alphas) == 0
    evidence = request.play(R)  # position 1: two proposals, the second is wrong
    check_evidence(evidence)
    assert (evidence.num_drafted, evidence.num_accepted) == (2, 1)
    assert evidence.drafted_alphas.tolist() == [0.75, 0.25]
    assert evidence.scores["r"].matches is not None
    assert evidence.scores["r"].matches.tolist() == [4, 0]
    assert evidence.scores["r"].ratios.tolist() == [1.0, 0.0]


def test_scoring_everyone_is_paid_for_but_never_a_target_forward() -> None:
    request = new_request()
    evidence = request.play(A, scores_everyone=True)
    check_evidence(evidence)
    assert {name: len(scores.alphas) for name, scores in evidence.scores.items()} == {
        "a": 2 + 3,
        "b": 2 + 3,
        "r": 3,
    }
    assert evidence.seconds == 4.0
    assert request.seconds == 4.0 + 0.5 * 0.125  # b's forward; a has just run, r needs none


def test_plain_rounds_reveal_no_model() -> None:
    evidence = new_request().play(NOTHING)
    check_evidence(evidence)
    assert set(evidence.scores) == {"r"}
    assert (evidence.num_drafted, evidence.num_emitted, evidence.seconds) == (0, 1, 1.0)


def test_the_target_may_end_the_text_inside_a_draft() -> None:
    request = new_request(tiny_text(length=2))
    evidence = request.play(A)
    assert (evidence.num_accepted, request.position) == (2, 2)  # verification finds the end
    assert len(evidence.scores["a"].alphas) == 2 + 2
    assert request.is_done


def test_the_prompt_is_scored_once_and_paid_for() -> None:
    request = new_request()
    evidence = request.prompt_evidence()
    assert evidence.plan == NOTHING
    assert evidence.scores["a"].start == PROMPT_TOKENS - 2
    assert set(evidence.scores) == {"a", "b"}
    assert request.seconds == 0.25 + 0.125
    assert evidence.emitted_start == PROMPT_TOKENS


def test_an_old_backlog_is_forgotten() -> None:
    num = 200
    track = Track(np.full(num, 0.5), np.full(num, 0.5), runs_of(np.zeros(num, dtype=bool)))
    request = SimulatedRequest(Text("t", 150, 150, {"a": track}), [A], COSTS, {})
    for _ in range(100):
        request.play(NOTHING)
    scores = request.play(A).scores["a"]
    assert len(scores.alphas) == MAX_BACKLOG
    assert scores.start == PROMPT_TOKENS + 101 - MAX_BACKLOG


def test_stop_rules_look_at_the_token_kept_last() -> None:
    """Confidence 0.9, 0.5, 0.9: the rule stops after the second token, retrieval never."""
    num = 16
    tops = np.array([0.9, 0.5, *[0.9] * (num - 2)])
    sure = Track(tops, tops, runs_of(np.ones(num, dtype=bool)), max_probs=tops)
    text = Text("t", 8, 8, {"a": sure, "r": tiny_text().tracks["r"]})
    rule = "max-confidence:0.8"
    plans = [Plan("a", 4, rule), Plan("r", 4, rule)]
    request = SimulatedRequest(text, plans, COSTS, {rule: make_stop_rule(rule)})
    evidence = request.play(plans[0])
    assert (evidence.num_drafted, evidence.num_accepted) == (2, 2)
    assert request.play(plans[1]).num_drafted == 2  # position 3


@pytest.mark.parametrize("seed", range(5))
def test_any_sequence_of_plans_keeps_the_promises(seed: int) -> None:
    rng, plans = np.random.default_rng(seed), [NOTHING, A, B, R]
    request, emitted = new_request(), 0
    while not request.is_done:
        before = request.position
        evidence = request.play(plans[rng.integers(4)], scores_everyone=bool(rng.integers(2)))
        check_evidence(evidence)
        assert evidence.emitted_start == PROMPT_TOKENS + before
        emitted += request.position - before
    assert emitted == 8


def test_all_plans_at_once_keep_the_best_draft_and_pay_for_every_one() -> None:
    """Position 0: accepted are 2 of 4 for ``a``, none of 2 for ``b``; ``r`` has no match."""
    request = new_request()
    evidence = request.play_all([NOTHING, A, B, R])
    check_evidence(evidence)
    assert (evidence.plan, evidence.num_accepted, request.position) == (A, 2, 3)
    assert evidence.seconds == request.seconds == 1.0 + 4.0 + (2.0 + 0.25) + 1.0
