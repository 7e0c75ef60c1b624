"""Wrappers of policies: what reaches the base, in which order, and saved state."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from draftwise.policies import evidence_from_json, evidence_to_json
from draftwise.registry import make_policy
from draftwise.types import NONE, Costs, Decision, Evidence, Feedback, Plan, Scores


def tell(policy: Any, plan: int, value: float, round_: int = 1) -> None:
    num_plans = len(policy.probabilities())
    seen = np.arange(num_plans) == plan
    policy.learn(Decision(plan, 1.0, round_), Feedback(np.where(seen, value, 0.0), seen))


def test_delayed_passes_on_in_order() -> None:
    """QFI-D: first in, first out. A window of 1 shows which value came last."""
    policy = make_policy("delayed:base=sliding-ucb,rounds=2", 1)
    seen = []
    for value in (0.1, 0.2, 0.3, 0.4):
        tell(policy, 0, value)
        seen.append(policy.state()["base"]["num_rounds"])
    assert seen == [0, 0, 1, 2]
    assert policy.estimates()[0] == pytest.approx(0.15)


def test_delayed_feedback_leaves_a_stream_without_delay() -> None:
    """HedgeSpec Algorithm 1: after T rounds at delay d, the base is in its state of T - d."""
    late, prompt = make_policy("delayed:base=exp3spec,rounds=5", 3), make_policy("exp3spec", 3)
    rng = np.random.default_rng(0)
    for t in range(50):
        plan, value = int(rng.integers(3)), float(rng.random())
        tell(late, plan, value)
        if t < 45:
            tell(prompt, plan, value)
    np.testing.assert_array_equal(late.probabilities(), prompt.probabilities())


def test_delayed_keeps_what_the_caller_overwrites() -> None:
    policy = make_policy("delayed:base=ucb1,rounds=1", 1)
    values, seen = np.array([0.25]), np.array([True])
    policy.learn(Decision(0, 1.0, 1), Feedback(values, seen))
    values[0] = 1.0
    policy.learn(Decision(0, 1.0, 2), Feedback(values, seen))
    assert policy.estimates().tolist() == [0.25]


def test_copies_take_turns_under_a_constant_delay() -> None:
    """Delay 2: each of three copies makes every third decision and never waits (Weinberger and
    Ordentlich's case of the reduction)."""
    policy, waiting, made = make_policy("copies:ucb1", 4), [], []
    for _ in range(12):
        waiting.append(policy.choose())
        made.append(waiting[-1].plan)
        if len(waiting) > 2:
            tell(policy, waiting[0].plan, 0.5, waiting[0].round)
            del waiting[0]
    assert len(policy.state()["copies"]) == 3
    assert made == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_copies_feedback_reaches_the_copy_that_made_the_decision() -> None:
    """Two decisions in flight, answered in the wrong order: each copy learns its own value."""
    policy = make_policy("copies:ucb1", 1)
    first, second = policy.choose(), policy.choose()
    tell(policy, 0, 0.9, second.round)
    tell(policy, 0, 0.1, first.round)
    sums = [copy["tally"]["sums"] for copy in policy.state()["copies"]]
    assert sums == [[0.1], [0.9]]
    assert policy.choose().round == 3
    assert len(policy.state()["copies"]) == 2


def test_copies_in_the_token_level_game_keep_all_feedback_of_a_decision_together() -> None:
    """HedgeSpec Theorem 4: a round of three tokens has three loss vectors, all for the copy of the
    decision, which is free again only after the last one."""
    policy = make_policy("copies:ucb1", 1)
    first, second = policy.choose(), policy.choose()
    for more, value in ((2, 0.1), (1, 0.2), (0, 0.3)):
        told = Feedback(np.array([value]), np.array([True]), more=more)
        assert policy.choose().round > 2
        policy.learn(second, told)
    policy.learn(first, Feedback(np.array([0.9]), np.array([True])))
    counts = [copy["tally"]["counts"] for copy in policy.state()["copies"]]
    assert counts[:2] == [[1.0], [3.0]]
    assert len(policy.state()["copies"]) == 5


def test_copies_give_a_replayed_decision_to_the_first() -> None:
    policy = make_policy("copies:ucb1", 2)
    tell(policy, 1, 0.75, round_=99)
    assert policy.estimates().tolist() == [0.0, 0.75]


def test_copies_draw_from_different_generators() -> None:
    policy = make_policy("copies:random", 1000)
    assert len({policy.choose().plan for _ in range(5)}) > 1


def test_copies_refuse_a_state_of_other_plans_whole() -> None:
    policy, other = make_policy("copies:ucb1", 2), make_policy("copies:ucb1", 3)
    other.choose(), other.choose()
    before = json.dumps(policy.state())
    with pytest.raises(ValueError, match="number of plans"):
        policy.load_state(other.state())
    assert json.dumps(policy.state()) == before


def test_batched_by_hand() -> None:
    """warmup 2, batch 3, skip 2. Rounds 1-2 at once; then every second feedback is kept (3, 5, 7,
    ..) and learned at rounds 5, 8, 11: counts 2, 2, then 4, 4, 4, then 5 (7)."""
    policy = make_policy("batched:base=ucb1,warmup=2,batch=3,skip=2", 1)
    counts = []
    for value in range(1, 10):
        policy.choose()
        tell(policy, 0, value / 10)
        counts.append(policy.state()["base"]["tally"]["counts"][0])
    assert counts == [1, 2, 2, 2, 4, 4, 4, 5, 5]
    sums = policy.state()["base"]["tally"]["sums"][0]
    assert sums == pytest.approx(0.1 + 0.2 + 0.3 + 0.5 + 0.7)


def test_batched_defaults_are_those_of_the_paper() -> None:
    """B.5: 6 rounds of full updates, batches of 12 rounds, one update per 6 tokens: of rounds 7 to
    18 it learns 2, at round 18."""
    policy = make_policy("batched:ucb1", 1)
    counts = []
    for _ in range(18):
        policy.choose()
        tell(policy, 0, 0.5)
        counts.append(policy.state()["base"]["tally"]["counts"][0])
    assert counts == [1, 2, 3, 4, 5, 6] + [6] * 11 + [8]


@pytest.mark.parametrize("rows", [1, 4, 8, 16])
def test_batched_learns_from_rows_that_share_it(rows: int) -> None:
    """All rows choose before the first of them learns; one feedback in 6 counts."""
    policy = make_policy("batched:ucb1", 2)
    for _ in range(4800 // rows):
        made = [policy.choose() for _ in range(rows)]
        for decision in made:
            tell(policy, decision.plan, 0.5, decision.round)
        assert len(policy.state()["kept"]) <= 12 + rows
    learned = sum(policy.state()["base"]["tally"]["counts"])
    assert 4800 / 6 - 2 * rows <= learned <= 4800 / 6 + 12


def test_one_plan_is_the_whole_batchs() -> None:
    """BanditSpec 6.2: eight rows play one length from the first round on, and all teach it."""
    shared, other = (make_policy("one-plan:base=ucb1:beta=1", 5) for _ in range(2))
    rows = [shared] * 8 + [other] * 2
    for t in range(1, 6):
        made = [policy.choose() for policy in rows]
        assert [decision.plan for decision in made] == [t - 1] * 10
        for policy, decision in zip(rows, made, strict=True):
            tell(policy, decision.plan, 0.5, decision.round)
    assert shared.state()["base"]["tally"]["counts"] == [8.0] * 5
    assert other.state()["base"]["tally"]["counts"] == [2.0] * 5


def test_wrappers_nest() -> None:
    policy = make_policy("delayed:base=batched:base=ucb1,rounds=1", 2)
    for _ in range(10):
        tell(policy, policy.choose().plan, 0.5)
    twin = make_policy("delayed:base=batched:base=ucb1,rounds=1", 2)
    twin.load_state(json.loads(json.dumps(policy.state())))
    assert twin.state() == policy.state()


PLANS = [Plan(NONE, 0), Plan("a", 2), Plan("lookup", 2, "svip:0.6")]


def evidence(seed: int = 0) -> Evidence:
    rng = np.random.default_rng(seed)
    return Evidence(
        PLANS[2], 2, 1,
        {
            "a": Scores(7, rng.random(3), rng.random(3)),
            "lookup": Scores(9, rng.random(2), rng.random(2), np.array([3, 0])),
        },
        rng.random(2), 9, 0.25, Costs(np.array([1.0, 1.5]), {"a": 0.125}), {"lookup": 4},
    )  # fmt: skip


def test_evidence_survives_json_whole() -> None:
    told = evidence()
    again = evidence_from_json(json.loads(json.dumps(evidence_to_json(told))))
    assert repr(again) == repr(told)
    bare = Evidence(PLANS[0], 0, 0)
    assert repr(evidence_from_json(json.loads(json.dumps(evidence_to_json(bare))))) == repr(bare)


@pytest.mark.parametrize("spec", ["delayed:base=goodput,rounds=3", "batched:base=goodput,skip=1"])
def test_evidence_in_flight_is_saved_and_loaded(spec: str) -> None:
    """After a save and load a pricing policy behind a delay queue must have the same prices."""
    policy = make_policy(spec, 3, plans=PLANS)
    nothing = np.zeros(3), np.zeros(3, dtype=bool)
    for seed in range(8):
        policy.learn(policy.choose(), Feedback(*nothing, evidence(seed)))
    twin = make_policy(spec, 3, plans=PLANS)
    twin.load_state(json.loads(json.dumps(policy.state())))
    for seed in range(8, 20):
        for each in (policy, twin):
            each.learn(each.choose(), Feedback(*nothing, evidence(seed)))
        np.testing.assert_array_equal(policy.estimates(), twin.estimates())
