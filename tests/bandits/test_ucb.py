"""The UCB family, computed by hand from the equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from draftwise.bandits.ucb import (
    UCB1,
    DiscountedUCB,
    SlidingUCB,
    UCBSpec,
    UCBTuned,
    ucb1_indices,
    ucbspec_radii,
)
from draftwise.types import Decision, Feedback


def bandit(plan: int, value: float, num_plans: int) -> tuple[Decision, Feedback]:
    """One round in which ``plan`` was played and had this value."""
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
    """Values 0.6, 0.5, 0.1 in rounds 1-3; then t = 3 and every n = 1: equal bonuses, plan 0.

    It gets 0: mean 0.3, n = 2, t = 4. Indices at beta 1: 0.3 + sqrt(ln 4) = 1.477, 0.5 + sqrt(2 ln
    4) = 2.165, 0.1 + 1.665 = 1.765: plan 1.
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
    """n = (9, 1), means (0.6, 0.5), t = 10: the bonuses are beta * 0.715 and beta * 2.146, so the
    second plan is due exactly when beta * 1.431 > 0.1, i.e. beta > 0.0699."""
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
        emitted = 1 + longest * rng.beta(1, 2 - 0.2 * theirs)  # real numbers cannot tie
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


def test_ucb_tuned_indices_are_tapouts() -> None:
    """mean + sqrt(ln t / n min(1/4, V)), V = variance + sqrt(2 ln t / n); one V on each side of
    1/4: at n = 4, t = 8 it is 0.01 + 1.02; at n = 900, 0.01 + 0.068 = 0.078."""
    means, counts = np.array([0.5, 0.4]), np.array([4.0, 900.0])
    expected = []
    for mean, n in zip(means, counts, strict=True):
        bound = 0.01 + math.sqrt(2 * math.log(8) / n)
        expected.append(mean + math.sqrt(math.log(8) / n * min(0.25, bound)))
    policy = UCBTuned(2)
    tally = policy._tally
    tally.counts, tally.num_rounds = counts, 8
    tally.sums, tally.squares = counts * means, counts * (means**2 + 0.01)
    assert policy.indices().tolist() == pytest.approx(expected)


def test_ucb_tuned_uses_the_empirical_variance() -> None:
    """Values 0, 1 (mean 0.5, variance 0.25) against 0.505 always, 4,000 times each: ln t / n =
    0.00225, sqrt(2 ln t / n) = 0.067, so V is above 1/4 and 0.067: bonuses 0.0237 and 0.0123, and
    the lower mean is due. Without subtracting the squared mean both would get 0.0237."""
    policy = UCBTuned(2)
    for _ in range(2000):
        for plan, value in ((0, 0.0), (0, 1.0), (1, 0.505), (1, 0.505)):
            policy.learn(*bandit(plan, value, 2))
    log_rate = math.log(8000) / 4000
    varied = 0.5 + math.sqrt(log_rate / 4)
    steady = 0.505 + math.sqrt(log_rate * math.sqrt(2 * log_rate))
    assert steady < varied < 0.505 + math.sqrt(log_rate / 4)
    assert policy.choose().plan == 0
    for _ in range(200):  # raises the steady plan's mean above both bonuses
        policy.learn(*bandit(1, 0.9, 2))
    assert policy.choose().plan == 1


def test_discounted_ucb_by_hand() -> None:
    """discount 0.5: plan 0 gives 1, then 0; plan 1 gives 0.6. n_0 = (0.5 + 1) 0.5 = 0.75, sum_0 =
    0.5 0.5 1 = 0.25, mean 1/3; n_1 = 1. t = 1.75, beta 0.1: 1/3 + 0.1 sqrt(2 ln 1.75 / 0.75) =
    0.455 against 0.6 + 0.1 sqrt(2 ln 1.75) = 0.706."""
    policy = DiscountedUCB(2, beta=0.1, discount=0.5)
    for plan, value in ((0, 1.0), (0, 0.0), (1, 0.6)):
        policy.learn(*bandit(plan, value, 2))
    bonus = 0.1 * math.sqrt(2 * math.log(1.75))
    bounds = [1 / 3 + bonus / math.sqrt(0.75), 0.6 + bonus]
    assert policy.indices().tolist() == pytest.approx(bounds)
    assert policy.estimates().tolist() == pytest.approx([1 / 3, 0.6])
    assert policy.choose().plan == 1


@pytest.mark.parametrize(
    "other",
    [DiscountedUCB(3, beta=0.2, discount=1.0), SlidingUCB(3, beta=0.2, window=400)],
    ids=["discount 1", "a long window"],
)
def test_what_forgets_nothing_is_ucb1(other: Any) -> None:
    rng, one = np.random.default_rng(0), UCB1(3, beta=0.2)
    for _ in range(300):
        decision = one.choose()
        assert other.choose() == decision
        round_ = bandit(decision.plan, float(rng.random()), 3)
        one.learn(*round_)
        other.learn(*round_)


def test_discounted_ucb_does_not_end_in_playing_all_plans_alike() -> None:
    """With bounded counts the logarithm of all rounds would grow for ever, and with it the share of
    the worse plan; the discounted total does not grow."""
    policy, shares = DiscountedUCB(2, beta=0.2, discount=0.98), []
    for t in range(40_000):
        plan = policy.choose().plan
        shares.append(plan)
        told = Feedback(np.array([0.8, 0.2]), np.arange(2) == plan)
        policy.learn(Decision(plan, 1.0, t + 1), told)
    early, late = np.mean(shares[1_000:2_000]), np.mean(shares[-1_000:])
    assert late == pytest.approx(early, abs=0.002)


def test_discounted_means_do_not_fall_to_0() -> None:
    """Line 9 of Algorithm 6 as printed divides a sum below 1 / (1 - discount) by a growing plain
    count, so that after 1,000 ones the mean would be 0.05."""
    policy = DiscountedUCB(1, discount=0.98)
    for _ in range(1000):
        policy.learn(*bandit(0, 1.0, 1))
    assert policy.estimates()[0] == pytest.approx(1)


def test_sliding_ucb_by_hand() -> None:
    """Window 3: rounds 2 to 4 hold plan 0 worth 0.2, plan 1 worth 0.6 and 0.4. t = 4, beta 0.1: 0.2
    + 0.1 sqrt(2 ln 4) = 0.367 against 0.5 + 0.1 sqrt(ln 4) = 0.618."""
    policy = SlidingUCB(2, beta=0.1, window=3)
    for plan, value in ((0, 1.0), (0, 0.2), (1, 0.6), (1, 0.4)):
        policy.learn(*bandit(plan, value, 2))
    assert policy.estimates().tolist() == pytest.approx([0.2, 0.5])
    assert policy.choose().plan == 1
    policy.learn(*bandit(1, 0.5, 2))  # plan 0 leaves the window, and is due
    assert policy.estimates()[0] == 0
    assert policy.choose().plan == 0


def test_sliding_ucb_tries_the_longest_unplayed_first() -> None:
    policy = SlidingUCB(3, window=2)
    assert [policy.choose().plan for _ in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    "policy",
    [DiscountedUCB(2, beta=0.1, discount=0.95), SlidingUCB(2, beta=0.1, window=40)],
    ids=["discounted", "sliding"],
)
def test_a_change_of_the_best_plan_is_found(policy: Any) -> None:
    """The plans swap their values of 0.8 and 0.3 after 300 rounds; UCB1 with 300 rounds of evidence
    would keep the old one for 500 more (until the means cross)."""
    plain, shares = UCB1(2, beta=0.01), []
    for each in (policy, plain):
        chosen = []
        for t in range(450):
            plan = each.choose().plan
            chosen.append(plan)
            each.learn(*bandit(plan, (0.8, 0.3)[plan if t < 300 else 1 - plan], 2))
        shares.append(float(np.mean(chosen[-75:])))
    assert shares[0] > 0.8
    assert shares[1] < 0.2
