"""Sequential Halving and PETC: phases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwise.bandits.simple import PETC, SequentialHalving
from draftwise.registry import make_policy
from draftwise.types import Decision, Feedback


def play(policy: SequentialHalving | PETC, values: list[float], rounds: int) -> list[int]:
    plans = []
    for _ in range(rounds):
        decision = policy.choose()
        plans.append(decision.plan)
        seen = np.arange(len(values)) == decision.plan
        policy.learn(decision, Feedback(np.array(values), seen))
    return plans


def test_phases_by_hand() -> None:
    """K = 4, T = 16: log2 K = 2 phases; n_0 = floor(16 / (4 * 2)) = 2, n_1 = floor(16 / 4) = 4.
    Values 0.2 0.8 0.6 0.4: plans 1 and 2 survive, then plan 1."""
    plans = play(SequentialHalving(4, budget=16), [0.2, 0.8, 0.6, 0.4], 20)
    assert plans == [0, 1, 2, 3] * 2 + [1, 2] * 4 + [1] * 4


@pytest.mark.parametrize("num_plans", [1, 2, 3, 5, 7, 8, 13, 64])
def test_one_is_left_within_the_budget(num_plans: int) -> None:
    """The printed floor(log2 K) phases would leave two of 3, 5 or 7; the best one must be left."""
    budget = 4 * num_plans * max(1, math.ceil(math.log2(num_plans)))
    values = np.random.default_rng(num_plans).random(num_plans).tolist()
    policy = SequentialHalving(num_plans, budget)
    play(policy, values, budget)
    assert set(play(policy, values, 10)) == {int(np.argmax(values))}


def test_the_better_half_is_kept_not_the_worse() -> None:
    """Line 6 of Algorithm 5 as printed would keep the worse half: plans 0 and 2."""
    policy = SequentialHalving(4)
    values = Feedback(np.array([0.1, 0.9, 0.2, 0.8]), np.ones(4, dtype=bool))
    policy.learn(Decision(0, 1.0, 1), values)
    assert [policy.choose().plan for _ in range(4)] == [1, 3, 1, 3]
    policy = SequentialHalving(3)
    play(policy, [0.5, 0.4, 0.3], 3)
    assert [policy.choose().plan for _ in range(4)] == [0, 1, 0, 1]


def test_means_are_of_the_phase_alone() -> None:
    """Plan 0 leads the first phase by 1 to 0.9 and loses the second by 0 to 0.5."""
    policy = SequentialHalving(4, period=1)
    first = {0: 1.0, 1: 0.9, 2: 0.1, 3: 0.0}
    for plan, value in [*first.items(), (0, 0.0), (1, 0.5)]:
        seen = np.arange(4) == plan
        policy.learn(Decision(plan, 1.0, 1), Feedback(np.full(4, value), seen))
    assert policy.choose().plan == 1


def test_a_small_budget_still_tries_every_plan_once() -> None:
    values = [0.1 * plan for plan in range(8)]
    assert play(SequentialHalving(8, budget=3), values, 12) == [*range(8), 4, 5, 6, 7]
    assert play(SequentialHalving(2, budget=1), [0.1, 0.9], 4) == [0, 1, 1, 1]


def test_late_feedback_keeps_exploring() -> None:
    """Eight decisions before any feedback must cycle through the four plans."""
    policy = SequentialHalving(4, budget=16)
    made = [policy.choose() for _ in range(8)]
    assert [decision.plan for decision in made] == [0, 1, 2, 3] * 2
    for decision in reversed(made):
        seen = np.arange(4) == decision.plan
        policy.learn(decision, Feedback(np.array([0.2, 0.8, 0.6, 0.4]), seen))
    assert {policy.choose().plan for _ in range(4)} == {1, 2}


def test_petc_explores_for_c_ln_b_rounds() -> None:
    """c = 3, B = 200: floor(3 ln 200) = 15 rounds; K = 4: n = floor(15 / 8) = 1, then floor(15 / 4)
    = 3: 4 + 6 rounds and then the survivor."""
    assert math.floor(3 * math.log(200)) == 15
    plans = play(PETC(4, c=3.0, num_tokens=200), [0.2, 0.8, 0.6, 0.4], 14)
    assert plans == [0, 1, 2, 3] + [1, 2] * 3 + [1] * 4


@pytest.mark.parametrize("num_plans", [2, 5, 7, 16])
def test_petc_commits_early_in_a_short_request(num_plans: int) -> None:
    """A request of 200 tokens has about 70 rounds: at most half of them may go to exploration."""
    policy = make_policy("petc", num_plans, request_tokens=200)
    values = [0.9 if plan == 1 else 0.3 for plan in range(num_plans)]
    plans = play(policy, values, 70)
    assert set(plans[35:]) == {1}
    longer = make_policy("petc", num_plans, request_tokens=100_000)
    assert play(longer, values, 20) != [1] * 20


def test_petc_is_halving_with_that_budget() -> None:
    values = [0.3, 0.5, 0.4, 0.9, 0.1]
    petc = play(PETC(5, c=10.0, num_tokens=512), values, 80)
    assert petc == play(SequentialHalving(5, math.floor(10.0 * math.log(512))), values, 80)
