"""Rounds of the UCB family worked by hand from the equations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwise.policies.ucb1 import UCB1, ucb1_indices
from draftwise.policies.ucbspec import UCBSpec, ucbspec_radii
from draftwise.types import Decision, Feedback


def bandit(plan: int, value: float, num_plans: int) -> tuple[Decision, Feedback]:
    """One round in which ``plan`` was played and was worth ``value``."""
    seen = np.arange(num_plans) == plan
    return Decision(plan, 1.0, 1), Feedback(np.where(seen, value, 0.0), seen)


def test_ucb1_indices_are_metasd_algorithm_2_line_7() -> None:
    """Line 7: mean + beta sqrt(2 ln t / n), at t = 7, n = (2, 5), beta = 0.01."""
    indices = ucb1_indices(np.array([0.5, 0.4]), np.array([2.0, 5.0]), 7, 0.01)
    expected = [
        0.5 + 0.01 * math.sqrt(2 * math.log(7) / 2),
        0.4 + 0.01 * math.sqrt(2 * math.log(7) / 5),
    ]
    assert indices.tolist() == pytest.approx(expected, abs=1e-15)


def test_ucb1_plays_each_once_then_the_best_index() -> None:
    """Values .6, .5, .1 in rounds 1-3; then t = 3 and every n = 1: the bonus is shared, plan 0.

    It gets 0: mean .3, n = 2, t = 4. Indices at beta 1: .3 + sqrt(ln 4) = 1.477, .5 + sqrt(2 ln 4)
    = 2.165, .1 + 1.665 = 1.765: plan 1.
    """
    policy = UCB1(num_plans=3, beta=1.0)
    plans = []
    for value in (0.6, 0.5, 0.1, 0.0):
        plans.append(policy.choose().plan)
        policy.learn(*bandit(plans[-1], value, 3))
    assert plans == [0, 1, 2, 0]
    assert policy.choose().plan == 1
    assert policy.estimates().tolist() == [0.3, 0.5, 0.1]


def test_ucb1_beta_decides_between_greed_and_curiosity() -> None:
    """n = (9, 1), means (.6, .5), t = 10: the bonuses are beta * .715 and beta * 2.146, so the
    second plan is due exactly when beta * 1.431 > .1, i.e. beta > .0699."""
    for beta, due in ((0.01, 0), (0.069, 0), (0.071, 1), (1.0, 1)):
        policy = UCB1(num_plans=2, beta=beta)
        for plan, value in [(0, 0.6)] * 9 + [(1, 0.5)]:
            policy.learn(*bandit(plan, value, 2))
        assert policy.choose().plan == due


def test_untried_plans_in_flight_are_not_all_the_same() -> None:
    """Four decisions before any feedback go to four plans; the fifth starts again."""
    policy = UCB1(num_plans=4)
    assert [policy.choose().plan for _ in range(5)] == [0, 1, 2, 3, 0]


def test_richer_feedback_counts_for_every_plan_seen() -> None:
    policy = UCB1(num_plans=3, beta=0.01)
    policy.learn(Decision(0, 1.0, 1), Feedback(np.array([0.2, 0.9, 0.4]), np.ones(3, dtype=bool)))
    assert policy.choose().plan == 1


def test_ucbspec_radius_is_banditspec_algorithm_4_line_3() -> None:
    """cr = L/2 sqrt((1+n)/n^2 (1 + 2 log(K t^2 (1+n)^(1/2) / delta))), L/2 become 1/2."""
    for n, t, k, delta in ((1, 2, 2, 0.5), (7, 30, 5, 0.1), (1000, 5000, 3, 1.0)):
        inside = 1 + 2 * math.log(k * t**2 * (1 + n) ** 0.5 / delta)
        expected = 0.5 * math.sqrt((1 + n) / n**2 * inside)
        assert ucbspec_radii(np.full(k, float(n)), t, delta)[0] == pytest.approx(expected)


def test_ucbspec_on_lengths_makes_the_papers_choices() -> None:
    """Algorithm 4 on Y in [1, L+1] with radius L/2 .. against ours on (Y - 1) / L with 1/2 ..: the
    same plan in each of 300 rounds."""
    rng = np.random.default_rng(0)
    longest, delta, num_plans = 6, 0.5, 3
    policy = UCBSpec(num_plans, delta)
    counts, sums = np.zeros(num_plans), np.zeros(num_plans)
    for t in range(300):
        if t < num_plans:
            theirs = t
        else:
            inside = 1 + 2 * np.log(num_plans * t**2 * np.sqrt(1 + counts) / delta)
            radius = longest / 2 * np.sqrt((1 + counts) / counts**2 * inside)
            theirs = int((sums / counts + radius).argmax())
        decision = policy.choose()
        assert decision.plan == theirs
        emitted = 1 + longest * rng.beta(1, 2 - 0.2 * theirs)  # a real number, so nothing ties
        counts[theirs] += 1
        sums[theirs] += emitted
        policy.learn(*bandit(theirs, (emitted - 1) / longest, num_plans))


def test_ucbspec_leaves_an_arm_as_often_as_its_proof_says() -> None:
    """Inequality (13) with L = 1: n <= 4 + 2 / gap^2 (1 + 2 log(K t^2 / (gap delta))).

    The bound holds whenever the values stay inside their radius, which fails with a probability
    below sum delta / t^2 = 0.82 delta; delta = 0.01 here, and the seed is fixed.
    """
    gap, delta, num_rounds = 0.4, 0.01, 3000
    policy, rng = UCBSpec(2, delta), np.random.default_rng(1)
    plays = 0
    for _ in range(num_rounds):
        plan = policy.choose().plan
        plays += plan == 0
        policy.learn(*bandit(plan, float(rng.random() < (0.3, 0.3 + gap)[plan]), 2))
    bound = 4 + 2 / gap**2 * (1 + 2 * math.log(2 * num_rounds**2 / (gap * delta)))
    assert 10 < plays <= bound
