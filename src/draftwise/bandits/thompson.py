"""Thompson sampling: play each plan with the probability that it is the best."""

from __future__ import annotations

import math

import numpy as np

from draftwise.bandits.base import SampledPolicy
from draftwise.checks import LARGE, number, scale
from draftwise.types import Bools, Decision, Feedback, Floats, Ints

_REACH = 6.0  # standard deviations around a mean that the cells cover
_FINEST = 0.25  # cell widths start to grow at the smallest standard deviation over this
_TINY = 1e-30  # floor of the distribution functions, to avoid 0 / 0


def shared_cells(
    means: Floats, sds: Floats, num: int, least: float = -math.inf, most: float = math.inf
) -> tuple[Ints, Floats, Floats]:
    """Indices of the variables that may be the largest; [num] midpoints and widths of shared cells.

    The largest variable is hardly ever below ``low``, the maximum of ``mean - 6 sd``. One that
    reaches above ``low`` with standard deviation s lies within 12 s of it; so cells that grow with
    the distance from ``low`` are as fine as each variable needs. least, most: the variables' range.

    >>> alive, middles, widths = shared_cells(np.array([0.5, 0.9]), np.array([0.01, 0.01]), 64)
    >>> alive.tolist(), bool(widths[0] < 0.01 < middles[0] - 0.8), round(float(widths.sum()), 9)
    ([1], True, 0.12)
    """
    highs = means + _REACH * sds
    low = max(float((means - _REACH * sds).max()), least)
    high = min(float(highs.max()), most)
    alive = np.flatnonzero(highs > low)
    stretch = math.log1p(_FINEST * (high - low) / float(sds[alive].min()))
    edges = np.expm1(np.linspace(0.0, stretch, num + 1))
    edges = low + (high - low) / edges[-1] * edges
    return alive, 0.5 * (edges[1:] + edges[:-1]), edges[1:] - edges[:-1]


def argmax_law(log_densities: Floats, widths: Floats) -> Floats:
    """[K] probability that each variable is the largest, from densities on shared cells.

    log_densities: [K, G] at the cells' midpoints; the cells reach to the top of every variable.
    widths: [G]. With masses m and distribution functions F at the midpoints, P_i = sum_g m_i(g)
    prod_{j != i} F_j(g); the mass below the first cell is 1 minus all others. ``log_densities`` is
    overwritten.

    >>> argmax_law(np.zeros((2, 64)), np.full(64, 1 / 64)).round(6).tolist()
    [0.5, 0.5]
    """
    masses = np.exp(log_densities, out=log_densities)
    masses *= widths
    cdf = masses.cumsum(axis=1)
    below = 1.0 - cdf[:, -1:]
    cdf -= 0.5 * masses
    cdf += below
    np.maximum(cdf, _TINY, out=cdf)
    weights = cdf.prod(axis=0) / cdf
    weights *= masses
    totals: Floats = weights.sum(axis=1)
    return totals / float(totals.sum())


_BETA_CELLS = 96


class ThompsonBernoulli(SampledPolicy):
    """Draw each plan with the probability that it is the best, under Beta beliefs.

    Source: TapOut, section 3.3, token level: the standard Beta-Bernoulli configuration.
    Update: Beta(1 + sum of values, 1 + sum of (1 - value)); plan = argmax of a sample from each.
    Differs: (1) the plan is drawn from the distribution of that argmax, computed on 96 cells,
        instead of from samples, so the decision's probability is exactly the one used for the draw;
        (2) a value between 0 and 1 counts as a fractional success; (3) every seen value counts.
        Cost: O(96 K) a choice.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._log_scales: Floats = np.zeros(num_plans)
        self._stale: Bools = np.zeros(num_plans, dtype=np.bool_)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        super().learn(decision, feedback)
        self._stale |= feedback.seen

    def probabilities(self) -> Floats:
        """[K] probability that a sample of Beta(1 + s, 1 + f) is the largest, accurate to 2e-3."""
        successes, counts = self._tally.sums, self._tally.counts
        failures = np.maximum(counts - successes, 0.0)
        for row in np.flatnonzero(self._stale).tolist():  # the log of 1 / B(1 + s, 1 + f)
            s, f = float(successes[row]), float(failures[row])
            log_scale = math.lgamma(s + f + 2.0) - math.lgamma(s + 1.0) - math.lgamma(f + 1.0)
            self._log_scales[row] = log_scale
        self._stale[:] = False
        n = successes + failures + 2.0
        means = (successes + 1.0) / n
        sds = np.sqrt(means * (1.0 - means) / (n + 1.0))
        alive, middles, widths = shared_cells(means, sds, _BETA_CELLS, 0.0, 1.0)
        logs = successes[alive, np.newaxis] * np.log(middles)
        logs += failures[alive, np.newaxis] * np.log1p(-middles)
        logs += self._log_scales[alive, np.newaxis]
        probabilities = np.zeros(len(means))
        probabilities[alive] = argmax_law(logs, widths)
        return probabilities

    def estimates(self) -> Floats:
        return (self._tally.sums + 1.0) / (self._tally.counts + 2.0)


_NORMAL_CELLS = 48
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


def gaussian_best_probabilities(means: Floats, sds: Floats) -> Floats:
    """[K] probability that a sample of N(mean, sd) is the largest, accurate to 3e-4."""
    alive, middles, widths = shared_cells(means, sds, _NORMAL_CELLS)
    logs = (middles - means[alive, np.newaxis]) / sds[alive, np.newaxis]
    logs *= -0.5 * logs
    logs -= np.log(_ROOT_TWO_PI * sds[alive])[:, np.newaxis]
    probabilities = np.zeros(len(means))
    probabilities[alive] = argmax_law(logs, widths)
    return probabilities


class ThompsonGaussian(SampledPolicy):
    """Draw each plan with the probability that it is the best, under Gaussian beliefs.

    Source: TapOut, section 3.3, sequence level: a Gaussian prior with a known noise variance.
    Update: posterior by Bayes' rule (conjugate); plan = argmax of a sample from each posterior.
    Differs: (1, 3) as ``ThompsonBernoulli``, on 48 cells; (2) the paper gives no numbers: N(0.5,
        0.5) covers [0, 1], and 0.5 is the largest possible standard deviation of a value in [0, 1].
        prior_sd, noise_sd: 1e-6 to 1e6.
    """

    def __init__(
        self, num_plans: int, rng: np.random.Generator, prior_mean: float = 0.5,
        prior_sd: float = 0.5, noise_sd: float = 0.5,
    ) -> None:  # fmt: skip
        self._prior = number("prior_mean", prior_mean, -LARGE, LARGE), scale("prior_sd", prior_sd)
        self._noise_sd = scale("noise_sd", noise_sd)
        super().__init__(num_plans, rng)

    def probabilities(self) -> Floats:
        return gaussian_best_probabilities(*self._posterior())

    def estimates(self) -> Floats:
        return self._posterior()[0]

    def _posterior(self) -> tuple[Floats, Floats]:
        """[K] means and [K] standard deviations."""
        (mean, sd), noise = self._prior, self._noise_sd**2
        precision = 1.0 / sd**2 + self._tally.counts / noise
        return (mean / sd**2 + self._tally.sums / noise) / precision, 1.0 / np.sqrt(precision)
