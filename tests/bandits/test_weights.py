"""Exponential-weights and hedging policies, computed by hand from the equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.bandits.base import instant_regrets
from draftwise.bandits.weights import (
    EXP3,
    AdaNormalHedge,
    EXP3Spec,
    Hedge,
    NormalHedge,
    adanormalhedge_weights,
    normalhedge_precision,
    normalhedge_weights,
)
from draftwise.types import Decision, Feedback

ALL3 = np.ones(3, dtype=bool)


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def bandit(plan: int, prob: float, value: float, num_plans: int) -> tuple[Decision, Feedback]:
    seen = np.arange(num_plans) == plan
    return Decision(plan, prob, 1), Feedback(np.where(seen, value, 0.0), seen)


def test_exp3spec_two_rounds_by_hand() -> None:
    """Eq. (6) and lines 3-4, K = 2. Round 1: p = 1/2 each; plan 0 is worth 0.25, its loss estimate
    0.75 / 0.5 = 1.5. Round 2: eta = sqrt(ln 2 / 4), p_0 = 1 / (1 + exp(1.5 eta)). Plan 1 is worth
    1: loss 0. Round 3: eta = sqrt(ln 2 / 6)."""
    policy = EXP3Spec(2, generator())
    assert policy.probabilities().tolist() == [0.5, 0.5]
    policy.learn(*bandit(0, 0.5, 0.25, 2))
    second = 1 / (1 + math.exp(1.5 * math.sqrt(math.log(2) / 4)))
    assert policy.probabilities()[0] == pytest.approx(second)
    policy.learn(*bandit(1, 1 - second, 1.0, 2))
    third = 1 / (1 + math.exp(1.5 * math.sqrt(math.log(2) / 6)))
    assert policy.probabilities()[0] == pytest.approx(third)


def test_exp3spec_divides_by_the_probability_at_the_time_of_the_choice() -> None:
    """Late feedback: the loss is divided by the decision's 0.1, not by the current probability:
    losses 10 * 1 / 0.5 = 20 and 0.5 / 0.1 = 5, t = 12."""
    policy = EXP3Spec(2, generator())
    for _ in range(10):
        policy.learn(*bandit(0, 0.5, 0.0, 2))
    policy.learn(*bandit(1, 0.1, 0.5, 2))
    rate = math.sqrt(math.log(2) / (12 * 2))
    assert policy.probabilities()[0] == pytest.approx(1 / (1 + math.exp(15 * rate)))


def test_exp3spec_uses_only_the_played_plan_of_richer_feedback() -> None:
    policy, twin = EXP3Spec(3, generator()), EXP3Spec(3, generator())
    policy.learn(Decision(1, 0.5, 1), Feedback(np.array([0.0, 0.5, 1.0]), ALL3))
    twin.learn(*bandit(1, 0.5, 0.5, 3))
    assert policy.probabilities().tolist() == twin.probabilities().tolist()
    assert policy.estimates().tolist() == twin.estimates().tolist()


def test_exp3spec_estimator_is_unbiased() -> None:
    """E[Z_i] over the draw = sum_j p_j 1{i = j} loss_i / p_j = loss_i. Z is read off the next
    probabilities, which are softmax(-eta Z) with eta = sqrt(ln 3 / 6) after one round."""
    losses, probabilities = np.array([0.5, 0.25, 0.125]), np.array([0.25, 0.5, 0.25])
    mean, rate = np.zeros(3), math.sqrt(math.log(3) / (2 * 3))
    for plan in range(3):
        policy = EXP3Spec(3, generator())
        policy.learn(*bandit(plan, probabilities[plan], 1 - losses[plan], 3))
        logs = np.log(policy.probabilities())
        mean += probabilities[plan] * (logs.max() - logs) / rate
    assert mean.tolist() == pytest.approx(losses.tolist())


def test_hedge_is_the_product_of_exponentials() -> None:
    """HedgeSpec B.1: w_i <- w_i exp(-eta loss_i), normalised; three rounds at eta = 0.7."""
    policy, weights = Hedge(3, generator(), eta=0.7), np.ones(3)
    for values in ([0.1, 0.5, 0.9], [0.3, 0.2, 0.25], [1.0, 0.0, 0.5]):
        policy.learn(Decision(0, 1.0, 1), Feedback(np.array(values), ALL3))
        weights *= np.exp(-0.7 * (1 - np.array(values)))
    assert policy.probabilities().tolist() == pytest.approx((weights / weights.sum()).tolist())


def test_hedge_anytime_rate() -> None:
    """After one round t = 2: eta = sqrt(ln 3 / 2)."""
    policy, values = Hedge(3, generator()), np.array([0.0, 0.5, 1.0])
    policy.learn(Decision(0, 1.0, 1), Feedback(values, ALL3))
    weights = np.exp(math.sqrt(math.log(3) / 2) * values)
    assert policy.probabilities().tolist() == pytest.approx((weights / weights.sum()).tolist())


@pytest.mark.parametrize("make", [Hedge, NormalHedge, AdaNormalHedge])
def test_hedging_keeps_below_its_regret_bound_against_an_adversary(make: Any) -> None:
    """HedgeSpec A.3 states 2 sqrt(T log K) for Hedge. The adversary gives value 1 to the plan with
    the least probability so far, and 0 to the rest; the regret is that of the draw's mean."""
    num_plans, num_rounds = 8, 400
    policy, owed, earned, totals = make(num_plans, generator()), np.zeros(8), 0.0, np.zeros(8)
    for _ in range(num_rounds):
        probabilities = policy.probabilities()
        owed += probabilities
        values = (np.arange(num_plans) == owed.argmin()).astype(np.float64)
        earned += float(probabilities @ values)
        totals += values
        policy.learn(Decision(0, 1.0, 1), Feedback(values, np.ones(num_plans, dtype=bool)))
    assert totals.max() - earned <= 2 * math.sqrt(num_rounds * math.log(num_plans))


def test_instant_regret_by_hand() -> None:
    """p = (1/2, 1/8, 3/8), values (1, 0, 1/2): the draw earns 11/16. With only the first two
    observed, weights (4/5, 1/5), it earns 4/5, and the third has no regret."""
    values, probabilities = np.array([1.0, 0.0, 0.5]), np.array([0.5, 0.125, 0.375])
    assert instant_regrets(values, ALL3, probabilities).tolist() == [5 / 16, -11 / 16, -3 / 16]
    two = np.array([True, True, False])
    some = instant_regrets(np.array([1.0, 0.0, 9.0]), two, probabilities)
    assert some.tolist() == pytest.approx([0.2, -0.8, 0.0])
    none_likely = np.array([0.0, 0.0, 1.0])
    assert instant_regrets(values, two, none_likely).tolist() == [0.5, -0.5, 0.0]


def test_normalhedge_figure_7_by_hand() -> None:
    """K = 2, R = (1, -1): step 4 is (exp(1/2c) + exp(0)) / 2 = e, so 1/(2c) = ln(2e - 1)."""
    assert normalhedge_precision(np.array([1.0, -1.0])) == pytest.approx(math.log(2 * math.e - 1))
    # R = (2, 1), step 5 by a bisection on step 4, written out independently of Newton:
    low, high = 0.0, 5.0
    for _ in range(200):
        middle = (low + high) / 2
        too_big = (math.exp(4 * middle) + math.exp(middle)) / 2 > math.e
        low, high = (low, middle) if too_big else (middle, high)
    first, second = 2 * math.exp(4 * low), 1 * math.exp(low)
    expected = [first / (first + second), second / (first + second)]
    assert normalhedge_weights(np.array([2.0, 1.0])).tolist() == pytest.approx(expected)


def test_normalhedge_two_rounds_by_hand() -> None:
    """Round 1: p = 1/3; values (0.9, 0.3, 0.3) give R = (0.4, -0.2, -0.2), so p = (1, 0, 0). Round
    2: values (0.7, 1, 0) against 0.7: R = (0.4, 0.1, -0.9)."""
    policy = NormalHedge(3, generator())
    for values in ([0.9, 0.3, 0.3], [0.7, 1.0, 0.0]):
        policy.learn(Decision(0, 1.0, 1), Feedback(np.array(values), ALL3))
    probabilities = policy.probabilities()
    expected = normalhedge_weights(np.array([0.4, 0.1, -0.9]))
    assert probabilities.tolist() == pytest.approx(expected.tolist())
    assert probabilities[2] == 0
    assert probabilities[0] > probabilities[1] > 0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=64))
def test_normalhedge_solves_its_equation(regrets: list[float]) -> None:
    """mean(exp([R]+^2 / 2c)) = e to 1e-9, and the weights are a distribution, at any scale."""
    array = np.array(regrets)
    probabilities = normalhedge_weights(array)
    assert probabilities.sum() == pytest.approx(1)
    assert (probabilities >= 0).all()
    if array.max() > 1e-9:
        squares = np.maximum(array, 0) ** 2
        mean = np.exp(normalhedge_precision(array) * squares).mean()
        assert mean == pytest.approx(math.e, rel=1e-9)
        assert (probabilities[array <= 0] == 0).all()


def test_normalhedge_takes_rounding_for_no_lead() -> None:
    """0.1 + 0.2 is not 0.3: a lead of 6e-17 must not get all the weight."""
    policy = NormalHedge(3, generator())
    for _ in range(1000):
        policy.learn(Decision(0, 1.0, 1), Feedback(np.array([0.3, 0.1 + 0.2, 0.3]), ALL3))
    assert policy.probabilities().tolist() == pytest.approx([1 / 3] * 3)


def test_exp3_two_rounds_by_hand() -> None:
    """MetaSD Algorithm 7, K = 2, gamma = 0.4. Plan 0 is worth 0.5 at p = 0.5: w_0 = exp(0.4 * 1 /
    2); p_0 = 0.6 w_0 / (w_0 + 1) + 0.2. Then plan 1 is worth 1: w_1 = exp(0.4 / (2 p_1))."""
    policy = EXP3(2, generator(), gamma=0.4)
    assert policy.probabilities().tolist() == pytest.approx([0.5, 0.5])
    policy.learn(*bandit(0, 0.5, 0.5, 2))
    w0 = math.exp(0.4 * (0.5 / 0.5) / 2)
    p1 = 0.6 * 1 / (w0 + 1) + 0.2
    assert policy.probabilities()[1] == pytest.approx(p1)
    policy.learn(*bandit(1, p1, 1.0, 2))
    w1 = math.exp(0.4 * (1.0 / p1) / 2)
    assert policy.probabilities()[1] == pytest.approx(0.6 * w1 / (w0 + w1) + 0.2)


def test_exp3_never_gives_less_than_its_share_of_exploring() -> None:
    policy = EXP3(4, generator(), gamma=0.4)
    for _ in range(3000):
        policy.learn(*bandit(0, 1.0, 1.0, 4))
    assert policy.probabilities().tolist() == pytest.approx([0.7, 0.1, 0.1, 0.1])


def phi(regret: float, size: float) -> float:
    return math.exp(max(regret, 0.0) ** 2 / (3 * size))


@pytest.mark.parametrize(
    ("regrets", "sizes"),
    [([0.0, 0.0], [0.0, 0.0]), ([1.5, -0.5, 0.2], [2.0, 0.7, 1.0]), ([-3.0, 0.5], [3.0, 9.0])],
)
def test_adanormalhedge_weights_are_the_difference_of_potentials(
    regrets: list[float], sizes: list[float]
) -> None:
    """w = (Phi(R + 1, C + 1) - Phi(R - 1, C + 1)) / 2, written out and normalised."""
    weights = [
        (phi(r + 1, c + 1) - phi(r - 1, c + 1)) / 2 for r, c in zip(regrets, sizes, strict=True)
    ]
    expected = [weight / sum(weights) for weight in weights]
    found = adanormalhedge_weights(np.array(regrets), np.array(sizes))
    assert found.tolist() == pytest.approx(expected)


def test_adanormalhedge_does_not_overflow_or_vanish() -> None:
    large = adanormalhedge_weights(np.array([9e4, 8e4]), np.array([1e5, 1e5]))
    assert large.tolist() == [1.0, 0.0]
    lost = adanormalhedge_weights(np.array([-5.0, -9.0]), np.array([5.0, 9.0]))
    assert lost.tolist() == [0.5, 0.5]


def test_adanormalhedge_two_rounds_by_hand() -> None:
    """Values (1, 0) at p = 1/2: R = (0.5, -0.5), C = (0.5, 0.5). Then plan 1 alone: no regret."""
    policy = AdaNormalHedge(2, generator())
    policy.learn(Decision(0, 0.5, 1), Feedback(np.array([1.0, 0.0]), np.ones(2, dtype=bool)))
    policy.learn(*bandit(1, 0.5, 0.3, 2))
    first, second = phi(1.5, 1.5) - 1, phi(0.5, 1.5) - 1
    assert policy.probabilities()[0] == pytest.approx(first / (first + second))


@pytest.mark.parametrize("make", [Hedge, NormalHedge, AdaNormalHedge])
def test_hedging_does_not_move_on_bandit_feedback(make: Any) -> None:
    """With one plan observed there is no regret, as the docstrings say: nothing is learned."""
    policy = make(3, generator())
    for plan, value in ((0, 0.0), (1, 1.0), (2, 0.5)):
        policy.learn(*bandit(plan, 1 / 3, value, 3))
    assert policy.probabilities().tolist() == pytest.approx([1 / 3] * 3)
    assert policy.estimates().tolist() == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("make", [Hedge, NormalHedge, AdaNormalHedge])
def test_hedging_moves_on_what_prefix_feedback_shows(make: Any) -> None:
    """Two of three plans are observed, the first always better: it overtakes the second."""
    policy, seen = make(3, generator()), np.array([True, True, False])
    for _ in range(200):
        policy.learn(Decision(0, 0.5, 1), Feedback(np.array([0.8, 0.2, 0.0]), seen))
    probabilities = policy.probabilities()
    assert probabilities[0] > 10 * probabilities[1]
