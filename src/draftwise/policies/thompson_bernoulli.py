"""Beta-Bernoulli Thompson sampling: play a plan as often as it is likely to be the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftwise.policies.argmax_law import argmax_law
from draftwise.policies.door import check_feedback
from draftwise.policies.probability import draw
from draftwise.policies.state import dump, load
from draftwise.policies.tally import Tally
from draftwise.types import Bools, Decision, Feedback, Floats

_FIELDS = ("_tally", "_rng")
_NUM_CELLS = 128
_MIDDLES = (np.arange(_NUM_CELLS) + 0.5) / _NUM_CELLS
_LOG_X, _LOG_1_X = np.log(_MIDDLES), np.log1p(-_MIDDLES)
_FAR = -300.0  # e to that is no probability, and yet no slow denormal number


def beta_cells(successes: Floats, failures: Floats) -> tuple[Floats, Floats]:
    """[n, G] masses, and the distribution function in the middles, of Beta(1 + s, 1 + f).

    On 128 equal cells of [0, 1]; both are above 0 everywhere.

    >>> masses, middles = beta_cells(np.array([0.0]), np.array([0.0]))
    >>> float(masses.min() * 128), float(masses.max() * 128), float(middles[0, 0] * 256)
    (1.0, 1.0, 1.0)
    """
    # Not a matrix product: its rounding would depend on how many rows are computed at once.
    logs = successes[:, np.newaxis] * _LOG_X + failures[:, np.newaxis] * _LOG_1_X
    logs -= logs.max(axis=1, keepdims=True)
    masses = np.exp(np.maximum(logs, _FAR, out=logs), out=logs)
    masses /= masses.sum(axis=1, keepdims=True)
    return masses, masses.cumsum(axis=1) - 0.5 * masses


class ThompsonBernoulli:
    """Draw each plan with the probability that it is the best, under Beta beliefs.

    Source: TapOut, section 3.3, token level: the standard Beta-Bernoulli configuration.
    Update: Beta(1 + sum of values, 1 + sum of (1 - value)); plan = argmax of a sample from each.
    Differs: (1) the plan is drawn from the law of that argmax, computed on 128 cells, instead of
        from samples: the probability that travels with the decision is then exactly the one drawn
        from; (2) a value between 0 and 1 counts as that share of a success; (3) every seen value
        counts.
    Feedback: bandit or richer, in any order.
    State: a Tally: counts, sums float64[K] (unitless); rounds learned; the random generator. The
        cells [K, 128] are a cache of it.
    Cost: O(128 K) a choice. Errors: ValueError from the door.

    >>> policy = ThompsonBernoulli(num_plans=4, rng=np.random.default_rng(0))
    >>> policy.choose().prob
    0.25
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        self._num_plans, self._rng, self._tally = num_plans, rng, Tally(num_plans)
        self._masses, self._middles = beta_cells(np.zeros(num_plans), np.zeros(num_plans))
        self._stale: Bools = np.zeros(num_plans, dtype=np.bool_)

    def choose(self) -> Decision:
        """A plan drawn from ``probabilities``."""
        probabilities = self.probabilities()
        plan = draw(probabilities, self._rng)
        return Decision(plan, float(probabilities[plan]), self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Count the seen values as successes and failures."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        self._tally.add(values, seen)
        self._stale |= seen

    def probabilities(self) -> Floats:
        """[K] probability that each plan is the best."""
        self._refresh()
        return argmax_law(self._masses, self._middles)

    def estimates(self) -> Floats:
        """[K] posterior mean."""
        average: Floats = (self._tally.sums + 1.0) / (self._tally.counts + 2.0)
        return average

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, _FIELDS)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, _FIELDS, state)
        self._stale[:] = True

    def _refresh(self) -> None:
        """Compute anew the cells of the plans that learned something."""
        rows = self._stale
        if rows.any():
            successes = self._tally.sums[rows]
            failures = np.maximum(self._tally.counts[rows] - successes, 0.0)
            self._masses[rows], self._middles[rows] = beta_cells(successes, failures)
            self._stale[:] = False
