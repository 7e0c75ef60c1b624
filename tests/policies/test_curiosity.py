"""Looks at drafters that are not played: when, at whom, and at what price."""

from __future__ import annotations

import json

import numpy as np

from draftwise.policies.curiosity import FIRST_LOOK, LOOK_SHARE, LOOK_STEPS, Curiosity
from draftwise.policies.goodput import Goodput
from draftwise.types import NONE, Costs, Decision, Evidence, Feedback, Plan, Scores

FLAT = [1.0] * 17

STEP_S = {"a": 0.1, "b": 0.1, "c": 0.1}


def everybody(name: str) -> bool:
    return True


def test_the_first_look_is_at_all_who_are_not_known_and_comes_once() -> None:
    curious = Curiosity()
    weights = {"a": 30.0, "b": 2.0, "c": 0.0}
    curious.saw_round(FIRST_LOOK - 1, 0.0)
    assert curious.names(weights, STEP_S, everybody) == []
    curious.saw_round(1, 0.0)
    assert curious.names(weights, STEP_S, lambda name: name != "c") == ["b"]
    assert curious.names(weights, STEP_S, everybody) == []


def test_later_looks_are_paid_out_of_the_purse_and_go_to_the_least_known() -> None:
    """One look costs three steps of .1 s: at 3% it takes 10 s of rounds to save for it."""
    curious = Curiosity()
    curious.saw_round(FIRST_LOOK, 0.0)
    curious.names({"a": 20.0}, STEP_S, everybody)
    needed_s = LOOK_STEPS * 0.1 / LOOK_SHARE
    curious.saw_round(1, 0.99 * needed_s)
    weights = {"a": 20.0, "b": 9.0, "c": 4.0}
    assert curious.names(weights, STEP_S, everybody) == []
    curious.saw_round(1, 0.02 * needed_s)
    assert curious.names(weights, STEP_S, everybody) == ["c"]
    assert curious.names(weights, STEP_S, everybody) == []


def test_who_is_known_needs_no_look() -> None:
    curious = Curiosity()
    curious.saw_round(FIRST_LOOK, 1e9)
    for _ in range(3):
        assert curious.names({"a": 17.0, "b": 99.0}, STEP_S, everybody) == []
    assert curious.names({}, {}, everybody) == []


def test_its_state_goes_through_json() -> None:
    one, other = Curiosity(), Curiosity()
    one.saw_round(20, 5.0)
    one.names({"a": 1.0}, STEP_S, everybody)
    other.load_state(json.loads(json.dumps(one.state())))
    assert other.state() == one.state()


def test_a_drafter_that_could_not_win_is_not_looked_at() -> None:
    """A long match that is always right against drafters: cheap ones may beat it, dear ones not."""
    plans = [Plan(NONE, 0), *(Plan(name, k) for name in ("lm", "copy") for k in (4, 16))]
    nothing = Feedback(np.zeros(5), np.zeros(5, dtype=bool))
    for cost, expected in ((0.001, ["lm"]), (0.2, [])):
        policy = Goodput(len(plans), plans)
        scores = {"copy": Scores(0, np.ones(300), np.ones(300), np.full(300, 20))}
        told = Evidence(
            plans[3], 4, 4, scores, costs=Costs(np.array(FLAT), {"lm": cost, "copy": 0.1}),
            matches={"copy": 20}, seconds=1.0,
        )  # fmt: skip
        for _ in range(6):
            policy.learn(Decision(3, 1.0, 1), Feedback(nothing.values, nothing.seen, told))
        assert policy.curious() == expected
        assert Goodput(len(plans), plans, looks=False).curious() == []
