"""Beta-Bernoulli Thompson sampling: play a plan as often as it is likely to be the best."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from draftwise.policies.parts.argmax_law import argmax_law, shared_cells
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.drawn import Drawn
from draftwise.policies.parts.state import Fields
from draftwise.types import Bools, Decision, Feedback, Floats

_NUM_CELLS = 96


def beta_log_scale(successes: float, failures: float) -> float:
    """The logarithm of what normalises ``x^s (1 - x)^f`` to the density of Beta(1 + s, 1 + f).

    >>> round(beta_log_scale(1.0, 1.0), 9) == round(math.log(6.0), 9)
    True
    """
    total = math.lgamma(successes + failures + 2.0)
    return total - math.lgamma(successes + 1.0) - math.lgamma(failures + 1.0)


def beta_best_probabilities(successes: Floats, failures: Floats, log_scales: Floats) -> Floats:
    """[K] probability that a sample of Beta(1 + s, 1 + f) is the largest of all, to 2e-3.

    >>> none = np.zeros(2)
    >>> beta_best_probabilities(none, none, none).tolist()
    [0.5, 0.5]
    """
    a, n = successes + 1.0, successes + failures + 2.0
    means = a / n
    sds = np.sqrt(means * (1.0 - means) / (n + 1.0))
    alive, middles, widths = shared_cells(means, sds, _NUM_CELLS, 0.0, 1.0)
    logs = successes[alive, np.newaxis] * np.log(middles)
    logs += failures[alive, np.newaxis] * np.log1p(-middles)
    logs += log_scales[alive, np.newaxis]
    probabilities = np.zeros(len(means))
    probabilities[alive] = argmax_law(logs, widths)
    return probabilities


class ThompsonBernoulli(Drawn):
    """Draw each plan with the probability that it is the best, under Beta beliefs.

    Source: TapOut, section 3.3, token level: the standard Beta-Bernoulli configuration.
    Update: Beta(1 + sum of values, 1 + sum of (1 - value)); plan = argmax of a sample from each.
    Differs: (1) the plan is drawn from the law of that argmax, computed on 96 cells, instead of
        from samples: the probability that travels with the decision is then exactly the one drawn
        from; (2) a value between 0 and 1 counts as that share of a success; (3) every seen value
        counts.
    Feedback: bandit or richer, in any order.
    State: a Tally: counts, sums float64[K] (unitless); rounds learned; the random generator. The
        logarithms [K] that normalise the beliefs are a cache of it.
    Cost: O(96 K) a choice. Errors: ValueError from ``check_feedback``.

    >>> policy = ThompsonBernoulli(num_plans=4, rng=np.random.default_rng(0))
    >>> policy.choose().prob
    0.25
    """

    KEPT: ClassVar[Fields] = {"tally": "_tally", "rng": "_rng"}

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._log_scales: Floats = np.zeros(num_plans)
        self._stale: Bools = np.zeros(num_plans, dtype=np.bool_)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Count the seen values as successes and failures."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        self._tally.add(values, seen)
        self._stale |= seen

    def probabilities(self) -> Floats:
        """[K] probability that each plan is the best."""
        successes, counts = self._tally.sums, self._tally.counts
        failures = np.maximum(counts - successes, 0.0)
        for row in np.flatnonzero(self._stale).tolist():
            self._log_scales[row] = beta_log_scale(float(successes[row]), float(failures[row]))
        self._stale[:] = False
        return beta_best_probabilities(successes, failures, self._log_scales)

    def estimates(self) -> Floats:
        """[K] posterior mean."""
        average: Floats = (self._tally.sums + 1.0) / (self._tally.counts + 2.0)
        return average

    def forget_what_follows(self) -> None:
        """The logarithms are computed anew."""
        self._stale[:] = True
