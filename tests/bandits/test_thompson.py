"""Thompson sampling: posteriors by hand, and the distribution of the argmax."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwise.bandits.thompson import (
    ThompsonBernoulli,
    ThompsonGaussian,
    argmax_law,
    gaussian_best_probabilities,
    shared_cells,
)
from draftwise.types import Decision, Feedback


def learn(policy: ThompsonBernoulli | ThompsonGaussian, plan: int, values: list[float]) -> None:
    num_plans = len(policy.estimates())
    for value in values:
        told = Feedback(np.full(num_plans, value), np.arange(num_plans) == plan)
        policy.learn(Decision(plan, 1.0, 1), told)


def test_gaussian_posterior_by_hand() -> None:
    """Prior N(0.5, 0.5^2), noise 0.5, values 0.9 and 0.7: precision 4 + 2 * 4 = 12, mean (4 * 0.5 +
    4 * 1.6) / 12 = 0.7."""
    policy = ThompsonGaussian(2, np.random.default_rng(0))
    learn(policy, 0, [0.9, 0.7])
    means, sds = policy._posterior()
    assert means.tolist() == pytest.approx([0.7, 0.5])
    assert sds.tolist() == pytest.approx([12**-0.5, 0.5])
    assert policy.estimates().tolist() == means.tolist()


SURE = ([0.9, 0.902, 0.5, 0.7], [0.003, 0.0003, 0.4, 0.1])


@pytest.mark.parametrize(
    ("means", "sds"),
    [
        ([0.5, 0.6], [0.1, 0.1]),
        ([0.5, 0.52, 0.3], [0.5, 0.01, 0.02]),  # an untried plan next to well-known ones
        ([0.2, 0.9, 0.5, 0.5], [0.3, 0.05, 0.2, 0.5]),
        ([0.5, 0.5001], [0.001, 0.001]),
        SURE,
    ],
)
def test_gaussian_law_of_the_argmax(means: list[float], sds: list[float]) -> None:
    """Against 400,000 samples, whose standard error is under 8e-4: 4e-3 is five of them."""
    drawn = np.random.default_rng(0).normal(means, sds, size=(400_000, len(means)))
    frequencies = np.bincount(drawn.argmax(axis=1), minlength=len(means)) / len(drawn)
    law = gaussian_best_probabilities(np.array(means), np.array(sds))
    np.testing.assert_allclose(law, frequencies, atol=4e-3)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0])
def test_gaussian_law_of_two_is_exact_in_closed_form(scale: float) -> None:
    """P(X > Y) = Phi((mu_x - mu_y) / sqrt(s_x^2 + s_y^2)), at any scale."""
    means, sds = 0.5 + scale * np.array([0.1, 0.0]), scale * np.array([0.3, 0.4])
    expected = 0.5 * math.erfc(-0.1 / 0.5 / math.sqrt(2))
    assert gaussian_best_probabilities(means, sds)[0] == pytest.approx(expected, abs=3e-4)


def test_cells_are_as_fine_as_every_number_needs() -> None:
    """Next to a wide distribution a narrow one still covers several cells, wherever it is."""
    means, sds = np.array(SURE[0]), np.array(SURE[1])
    alive, middles, widths = shared_cells(means, sds, 96)
    for plan in alive.tolist():
        near = np.abs(middles - means[plan]) < 2 * sds[plan]
        assert near.sum() >= 4 or means[plan] < middles[0]
        assert np.all(widths[near] <= 1.3 * sds[plan])


def test_bernoulli_posterior_and_law() -> None:
    """Beta(1 + 3, 1 + 1) mean 4/6; Beta(1, 1) mean 1/2; and the argmax against 400,000 samples."""
    policy = ThompsonBernoulli(3, np.random.default_rng(0))
    learn(policy, 0, [1.0, 1.0, 0.0, 1.0])
    learn(policy, 1, [0.5, 0.25])
    assert policy.estimates().tolist() == pytest.approx([4 / 6, 1.75 / 4, 1 / 2])
    drawn = np.random.default_rng(1).beta([4, 1.75, 1], [2, 2.25, 1], size=(400_000, 3))
    frequencies = np.bincount(drawn.argmax(axis=1), minlength=3) / len(drawn)
    np.testing.assert_allclose(policy.probabilities(), frequencies, atol=5e-3)


def test_bernoulli_law_with_much_evidence() -> None:
    """Beta(601, 401) against Beta(651, 351), sd 0.015: two cells each are still accurate."""
    policy = ThompsonBernoulli(2, np.random.default_rng(0))
    for plan, successes in ((0, 600), (1, 650)):
        learn(policy, plan, [1.0] * successes + [0.0] * (1000 - successes))
    drawn = np.random.default_rng(1).beta([601, 651], [401, 351], size=(400_000, 2))
    frequency = (drawn[:, 0] > drawn[:, 1]).mean()
    assert policy.probabilities()[0] == pytest.approx(frequency, abs=5e-3)


def test_what_is_drawn_follows_the_probabilities() -> None:
    """20,000 draws: a standard error of at most 0.0036; 0.018 is 5 of them (false alarm 1e-6)."""
    policy = ThompsonGaussian(3, np.random.default_rng(0))
    learn(policy, 0, [0.9, 0.3])
    learn(policy, 1, [0.6])
    law = policy.probabilities()
    drawn = np.bincount([policy.choose().plan for _ in range(20_000)], minlength=3) / 20_000
    np.testing.assert_allclose(drawn, law, atol=0.018)


def test_argmax_law_of_equals_is_uniform() -> None:
    assert argmax_law(np.zeros((5, 10)), np.full(10, 0.1)).tolist() == pytest.approx([0.2] * 5)


def test_argmax_law_is_the_sum_over_cells_of_its_docstring() -> None:
    """P_i = sum_g m_i(g) prod_{j != i} F_j(g), each product written out without factor i; a tenth
    of every mass lies below the first cell."""
    masses = np.random.default_rng(0).random((4, 6))
    masses *= 0.9 / masses.sum(axis=1, keepdims=True)
    widths = np.array([0.1, 0.1, 0.2, 0.2, 0.3, 0.1])
    middles = 0.1 + masses.cumsum(axis=1) - 0.5 * masses
    sums = [
        sum(masses[i, g] * math.prod(np.delete(middles[:, g], i)) for g in range(6))
        for i in range(4)
    ]
    law = argmax_law(np.log(masses / widths), widths)
    assert law.tolist() == pytest.approx([s / sum(sums) for s in sums])


def test_bernoulli_law_tells_two_sure_plans_apart() -> None:
    """Beta at n = 10,000 with means 0.900 and 0.902: 0.32 and 0.68 by samples."""
    policy = ThompsonBernoulli(2, np.random.default_rng(0))
    policy._tally.sums[:], policy._tally.counts[:] = [9000.0, 9020.0], 10_000.0
    policy._stale[:] = True
    drawn = np.random.default_rng(1).beta([9001, 9021], [1001, 981], size=(400_000, 2))
    assert policy.probabilities()[0] == pytest.approx((drawn.argmax(axis=1) == 0).mean(), abs=4e-3)


@pytest.mark.parametrize("make", [ThompsonBernoulli, ThompsonGaussian])
def test_the_law_of_hundreds_of_plans_that_are_sure(make: type) -> None:
    """500 plans, each seen 10,000 times, one ahead: products of 500 tiny numbers underflow."""
    policy, values = make(500, np.random.default_rng(0)), np.full(500, 0.25)
    values[7] = 0.75
    for _ in range(20):
        policy.learn(Decision(0, 1.0, 1), Feedback(values, np.ones(500, dtype=bool)))
    policy._tally.sums *= 500
    policy._tally.counts *= 500
    law = policy.probabilities()
    assert law[7] == pytest.approx(1.0)
    assert law.sum() == pytest.approx(1.0)
