"""Token-level TapOut: one bandit per position, rewarded by the token at it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from draftwise import make_stop_rule
from draftwise.bandits.stop_rules import TapOutToken
from draftwise.protocols import Policy
from draftwise.registry import make_policy
from draftwise.types import Decision, DraftStep, Feedback

STOPS, GOES = "max-confidence:1", "max-confidence:0"
"""Rules that stop always after the first token, and never."""


class Noted:
    """A bandit that makes scripted choices and records its rewards."""

    def __init__(self, picks: list[int], heard: list[Any], num_plans: int) -> None:
        self._picks, self.heard, self._num_plans = picks, heard, num_plans

    def choose(self) -> Decision:
        return Decision(self._picks.pop(0), 1.0, 1)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        assert np.flatnonzero(feedback.seen).tolist() == [decision.plan]
        self.heard.append((decision.plan, float(feedback.values[decision.plan])))


def draft(stop_rule: TapOutToken, length: int) -> int:
    """Number of drafted tokens when every q has a largest probability of 0.5."""
    depth = 0
    while depth < length and stop_rule.should_continue(DraftStep(depth, length, max_prob=0.5)):
        depth += 1
    return depth


def noted(picks: list[list[int]]) -> tuple[TapOutToken, list[list[Any]]]:
    """A stop rule whose bandit at each position picks these rules: 0 stops, 1 continues."""
    heard: list[list[Any]] = [[] for _ in picks]
    made = iter(zip(picks, heard, strict=True))

    def make_bandit(spec: str, num_plans: int) -> Policy:
        assert (spec, num_plans) == ("ucb1:beta=1,x=2", 2)
        return Noted(*next(made), num_plans)  # type: ignore[return-value]

    rules = f"{STOPS}+{GOES}"
    return TapOutToken(make_stop_rule, make_bandit, "ucb1:beta=1;x=2", rules), heard


def test_each_position_hears_of_its_own_token() -> None:
    stop_rule, heard = noted([[1, 1, 0], [1, 0], [1]])
    assert (
        draft(stop_rule, 4) == 4
    )  # positions 1 to 3 decide; the fourth token ends the draft anyway
    stop_rule.learn(4, 2)
    assert heard == [[(1, 1.0)], [(1, 1.0)], [(1, 0.0)]]
    assert draft(stop_rule, 4) == 2
    stop_rule.learn(2, 0)
    assert heard == [[(1, 1.0), (1, 0.0)], [(1, 1.0), (0, 0.0)], [(1, 0.0)]]
    assert draft(stop_rule, 1) == 1
    stop_rule.learn(1, 1)
    assert heard[0] == [(1, 1.0), (1, 0.0)], "a draft of one token asked no bandit"
    assert draft(stop_rule, 4) == 1
    stop_rule.learn(1, 1)
    assert heard[0][-1] == (0, 1.0)


def test_a_draft_that_nobody_reports_is_forgotten() -> None:
    stop_rule, heard = noted([[1, 1, 0], [1, 0], [1]])
    draft(stop_rule, 3)
    assert draft(stop_rule, 2) == 2
    stop_rule.learn(2, 2)
    assert heard == [[(1, 1.0)], [], []]


def test_rules_inside_learn_from_every_draft() -> None:
    stop_rule = make_stop_rule("tapout-token:rules=adaedl:threshold=0.9;epsilon=1+fixed")
    before = stop_rule._rules[0].threshold  # type: ignore[attr-defined]
    stop_rule.learn(4, 0)
    after = stop_rule._rules[0].threshold  # type: ignore[attr-defined]
    assert (before, after) == pytest.approx((0.9, 1.0))


@pytest.mark.parametrize("bandit", ["ucb1:beta=1", "thompson-bernoulli"])
def test_a_rule_that_is_liked_better_is_obeyed_more_often(bandit: str) -> None:
    """Tokens are accepted exactly when the second rule was followed at position 1."""
    make_bandit = functools.partial(make_policy, seed=np.random.default_rng(0))
    stop_rule = TapOutToken(make_stop_rule, make_bandit, bandit, f"{STOPS}+{GOES}")
    lengths = []
    for _ in range(200):
        lengths.append(draft(stop_rule, 2))
        stop_rule.learn(lengths[-1], lengths[-1] - 1)
    assert np.mean(np.array(lengths[100:]) == 2) > 0.8


def test_randomness_is_handed_in() -> None:
    def life(seed: int) -> list[int]:
        stop_rule = make_stop_rule(
            f"tapout-token:bandit=thompson-bernoulli,rules={STOPS}+{GOES}", seed
        )
        lengths = []
        for _ in range(30):
            lengths.append(draft(stop_rule, 6))  # type: ignore[arg-type]
            stop_rule.learn(lengths[-1], 1)
        return lengths

    assert life(1) == life(1)
    assert life(1) != life(2)
