"""Gaussian Thompson sampling: play a plan as often as it is likely to be the best."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from draftwise.checks import LARGE, number, scale
from draftwise.policies.parts.argmax_law import argmax_law, shared_cells
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.drawn import Drawn
from draftwise.policies.parts.state import Fields
from draftwise.types import Decision, Feedback, Floats

_NUM_CELLS = 48
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


def gaussian_posterior(
    sums: Floats, counts: Floats, prior_mean: float, prior_sd: float, noise_sd: float
) -> tuple[Floats, Floats]:
    """[K] mean and [K] standard deviation of N(prior) after ``counts`` values with known noise.

    >>> mean, sd = gaussian_posterior(np.array([1.0]), np.array([1.0]), 0.0, 1.0, 1.0)
    >>> mean.tolist(), (sd**2).round(9).tolist()
    ([0.5], [0.5])
    """
    precision = 1.0 / prior_sd**2 + counts / noise_sd**2
    means: Floats = (prior_mean / prior_sd**2 + sums / noise_sd**2) / precision
    return means, 1.0 / np.sqrt(precision)


def gaussian_best_probabilities(means: Floats, sds: Floats) -> Floats:
    """[K] probability that a sample of N(mean, sd) is the largest of all, to 3e-4.

    >>> gaussian_best_probabilities(np.array([0.5, 0.5]), np.array([0.1, 0.1])).tolist()
    [0.5, 0.5]
    """
    alive, middles, widths = shared_cells(means, sds, _NUM_CELLS)
    logs = (middles - means[alive, np.newaxis]) / sds[alive, np.newaxis]
    logs *= -0.5 * logs
    logs -= np.log(_ROOT_TWO_PI * sds[alive])[:, np.newaxis]
    probabilities = np.zeros(len(means))
    probabilities[alive] = argmax_law(logs, widths)
    return probabilities


class ThompsonGaussian(Drawn):
    """Draw each plan with the probability that it is the best, under Gaussian beliefs.

    Source: TapOut, section 3.3, sequence level: a Gaussian prior with a known noise variance.
    Update: posterior by Bayes' rule (conjugate); plan = argmax of a sample from each posterior.
    Differs: (1) the plan is drawn from the law of that argmax, computed on 48 cells, instead of
        from samples: the probability that travels with the decision is then exactly the one drawn
        from; (2) the paper names no numbers: N(0.5, 0.5) covers [0, 1], and 0.5 is the largest
        standard deviation a value in [0, 1] can have; (3) every seen value counts.
    Feedback: bandit or richer, in any order.
    State: a Tally: counts, sums float64[K] (unitless); rounds learned; the random generator.
    Cost: O(48 K) a round. Errors: ValueError if prior_sd or noise_sd is not from 1e-6 to 1e6.

    >>> policy = ThompsonGaussian(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.choose().prob
    0.5
    """

    KEPT: ClassVar[Fields] = {"tally": "_tally", "rng": "_rng"}

    def __init__(
        self, num_plans: int, rng: np.random.Generator, prior_mean: float = 0.5,
        prior_sd: float = 0.5, noise_sd: float = 0.5,
    ) -> None:  # fmt: skip
        self._prior = number("prior_mean", prior_mean, -LARGE, LARGE), scale("prior_sd", prior_sd)
        self._noise_sd = scale("noise_sd", noise_sd)
        super().__init__(num_plans, rng)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Add the seen values to the sums of the posteriors."""
        self._tally.add(*check_feedback(decision, feedback, self._num_plans))

    def probabilities(self) -> Floats:
        """[K] probability that each plan is the best."""
        return gaussian_best_probabilities(*self._posterior())

    def estimates(self) -> Floats:
        """[K] posterior mean."""
        return self._posterior()[0]

    def _posterior(self) -> tuple[Floats, Floats]:
        tally = self._tally
        return gaussian_posterior(tally.sums, tally.counts, *self._prior, self._noise_sd)
