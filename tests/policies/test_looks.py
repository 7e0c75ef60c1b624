"""Probes of idle drafters: their value, and when one is due."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftwise.policies.goodput import Goodput, PlanCosts, ProbeScheduler
from draftwise.types import NONE, Costs, Decision, Evidence, Feedback, Plan, Scores

NAMES = ("a", "b")
PLANS = [Plan(NONE, 0), *(Plan(name, k) for name in NAMES for k in (1, 2, 4, 8))]
FLAT = [1.0] * 17


def costs(step_s: float = 0.05, read_s: float = 0.001) -> PlanCosts:
    found = PlanCosts(PLANS)
    found.take(Costs(np.array(FLAT), dict.fromkeys(NAMES, step_s), None,
                     dict.fromkeys(NAMES, read_s)))  # fmt: skip
    return found


def due(
    rate: float, weight: float, *, best: float = 2.0, left: float = 100.0, step_s: float = 0.05,
    rows: int = 1, emitted: int = 0, looks: ProbeScheduler | None = None,
) -> list[int]:  # fmt: skip
    """Whether a probe of ``a`` is due, ``b`` and ``none`` being excluded."""
    known = looks or ProbeScheduler(3, 33.0)
    known.scored(1, 100, False)
    known.reached(140, emitted)
    rates, weights = np.array([rate, rate, rate]), np.array([weight, 0.0, 0.0])
    return known.due(best, rates, weights, costs(step_s), left, rows)


def test_a_look_is_due_where_it_may_bring_more_than_it_costs() -> None:
    assert due(0.55, 2.0) == [0]
    assert due(0.55, 2.0, step_s=5.0) == []  # too expensive to probe and to play
    assert due(0.55, 2.0, left=1.0) == []  # nothing left to gain
    assert due(0.02, 40.0) == []  # known to be useless
    assert due(0.55, 2.0, best=9.0) == []  # the current plan cannot be improved
    assert due(0.55, 2.0, rows=1000) == []  # all rows of a batch wait for the probe


def test_what_is_not_known_is_worth_more_than_what_is() -> None:
    """Acceptance 0.3: at weight 1 it may well be 0.9, at weight 30 hardly."""
    assert due(0.3, 1.0) == [0]
    assert due(0.3, 30.0) == []


def test_what_is_missed_adds_up_until_a_look_is_due() -> None:
    """A drafter of little promise is probed eventually, and then not again at once."""
    looks = ProbeScheduler(3, 33.0)
    looks.scored(1, 100, False)
    rounds = 0
    while not due(0.2, 4.0, emitted=4, looks=looks):
        rounds += 1
        assert rounds < 100
    assert rounds > 5
    looks.scored(0, 140, True)
    looks.reached(150, 4)
    assert looks.due(2.0, np.full(3, 0.2), np.array([4.0, 0.0, 0.0]), costs(), 100.0, 1) == []


def test_a_drafter_that_surely_fails_may_be_better_by_now() -> None:
    """If acceptance may drift, such a drafter is probed once in a while; otherwise never."""
    looks, sure = ProbeScheduler(3, 33.0), ProbeScheduler(3, 33.0)
    looks.remember(np.zeros(3), np.zeros(3))
    for one in (looks, sure):
        one.scored(1, 100, False)
    rounds = 0
    while not due(0.02, 40.0, emitted=4, looks=looks):
        assert due(0.02, 40.0, emitted=4, looks=sure) == []
        rounds += 1
    assert 1 < rounds < 1000


def test_rows_that_wait_share_what_was_missed() -> None:
    alone, crowd = ProbeScheduler(3, 33.0), ProbeScheduler(3, 33.0)
    due(0.3, 10.0, emitted=8, looks=alone)
    due(0.3, 10.0, emitted=8, looks=crowd, rows=4)
    assert 4 * crowd.missed_s[0] == pytest.approx(alone.missed_s[0])


def test_before_the_first_round_all_that_are_worth_it() -> None:
    looks = ProbeScheduler(3, 33.0)
    looks.reached(100, 0)
    beliefs = np.array([0.55, 0.6, 0.0]), np.array([2.0, 2.0, 0.0])
    assert sorted(looks.due(1.5, *beliefs, costs(), 100.0, 1)) == [0, 1]
    looks.scored(0, 100, False)
    looks.reached(140, 4)
    assert len(looks.due(1.5, *beliefs, costs(), 100.0, 1)) == 1


def test_catching_up_is_spread_over_what_it_may_be_played_for() -> None:
    looks = ProbeScheduler(2, 33.0)
    looks.scored(0, 60, False)
    looks.scored(1, 90, True)  # a partial read: nothing before it is cached
    looks.reached(100, 0)
    read_s = np.array([0.01, 0.01])
    assert looks.catching_up(read_s, 20.0).tolist() == pytest.approx([0.4 / 20, 1.0 / 20])
    assert looks.catching_up(read_s, 500.0).tolist() == pytest.approx([0.4 / 33, 1.0 / 33])


def test_its_state_goes_through_json() -> None:
    one, other = ProbeScheduler(3, 33.0), ProbeScheduler(3, 33.0)
    due(0.1, 8.0, emitted=4, looks=one)
    other.load_state(json.loads(json.dumps(one.state())))
    assert other.state() == one.state()


def test_a_single_model_is_played_and_not_looked_at() -> None:
    plans = [Plan(NONE, 0), Plan("lm", 4), Plan("copy", 4)]
    policy = Goodput(len(plans), plans)
    told = Evidence(
        plans[0], 0, 0, {}, costs=Costs(np.array(FLAT), {"lm": 0.001, "copy": 0.1}),
        matches={"copy": 0}, seconds=1.0, emitted_start=300,
    )  # fmt: skip
    policy.learn(Decision(0, 1.0, 1), Feedback(np.zeros(3), np.zeros(3, dtype=bool), told))
    assert policy.drafters_to_probe() == []


def test_a_drafter_that_could_not_win_is_not_looked_at() -> None:
    """Against a long match that is always right only a cheap drafter can win and is probed."""
    plans = [Plan(NONE, 0), *(Plan(name, k) for name in ("lm", "copy", "other") for k in (4, 16))]
    nothing = Feedback(np.zeros(7), np.zeros(7, dtype=bool))
    for cost, expected in ((0.001, ["lm"]), (0.2, [])):
        policy = Goodput(len(plans), plans)
        scores = {"copy": Scores(0, np.ones(300), np.ones(300), np.full(300, 20))}
        told = Evidence(
            plans[3], 4, 4, scores,
            costs=Costs(np.array(FLAT), {"lm": cost, "copy": 0.1, "other": 0.2}),
            matches={"copy": 20}, seconds=1.0, emitted_start=300,
        )  # fmt: skip
        policy.learn(Decision(3, 1.0, 1), Feedback(nothing.values, nothing.seen, told))
        assert policy.drafters_to_probe() == expected
        assert Goodput(len(plans), plans, looks=False).drafters_to_probe() == []


def num_probes(is_good: bool) -> int:
    """Probes of ``b`` over 30 requests on different texts, while ``a`` drafts well.

    is_good: whether ``b`` is as good as a drafter can be on the last 15.
    """
    memory, num, nothing = Goodput(len(PLANS), PLANS).new_memory(), 0, np.zeros(len(PLANS))
    told = Costs(np.array(FLAT), dict.fromkeys(NAMES, 0.05), None, dict.fromkeys(NAMES, 0.001))
    for request in range(30):
        policy, text = Goodput(len(PLANS), PLANS), list(range(100 * request, 100 * request + 100))
        policy.recall(memory, text)
        own, end, seconds = {"a": Scores(84, np.full(16, 0.7), np.full(16, 0.7))}, 100, 0.0
        for _ in range(30):
            facts = Evidence(PLANS[0], 0, 0, own, costs=told, seconds=seconds, tokens=[end],
                             emitted_start=end)  # fmt: skip
            policy.learn(Decision(0, 1.0, 1), Feedback(nothing, nothing > 0, facts))
            own, seconds, end = {"a": Scores(end, np.full(1, 0.7), np.full(1, 0.7))}, 1.0, end + 1
            if "b" in policy.drafters_to_probe():
                alphas = np.full(16, float(is_good and request >= 15))
                own["b"], num = Scores(end - 16, alphas, alphas, weight=0.25), num + 1
    return num


def test_a_drafter_that_always_fails_is_hardly_probed_any_more() -> None:
    assert 1 <= num_probes(is_good=False) <= 20
    assert num_probes(is_good=True) > num_probes(is_good=False)
