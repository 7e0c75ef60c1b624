"""AdaNormalHedge: hedging without a rate, whose regret is small when the best plan loses little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.instant_regrets import instant_regrets
from draftwise.policies.parts.probability import draw
from draftwise.policies.parts.state import dump, load
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats

_FIELDS = ("_regrets", "_sizes", "_tally", "_rng")


def adanormalhedge_probabilities(regrets: Floats, sizes: Floats) -> Floats:
    """[K] proportional to ``w(R, C) = 1/2 (Phi(R + 1, C + 1) - Phi(R - 1, C + 1))``, where
    ``Phi(R, C) = exp([R]+^2 / (3 C))``; uniform where every w is 0.

    >>> adanormalhedge_probabilities(np.array([0.0, -1.0]), np.array([1.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    scale = 3.0 * (sizes + 1.0)
    upper = np.maximum(regrets + 1.0, 0.0) ** 2 / scale
    lower = np.maximum(regrets - 1.0, 0.0) ** 2 / scale
    weights = np.exp(upper - upper.max()) * (0.0 - np.expm1(lower - upper))
    total = weights.sum()
    if total <= 0.0:
        return np.full(len(regrets), 1.0 / len(regrets))
    normalised: Floats = weights / total
    return normalised


class AdaNormalHedge:
    """Draw plans by how far each is ahead of the draw, for how much they differed so far.

    Source: Luo and Schapire 2015 (COLT; arXiv 1502.05934), with a uniform prior and their sleeping
        experts. HedgeSpec compares it (appendix D.5, tables 9 and 10) and prints no equation.
    Update: r = (mean loss of the draw) - loss; R += r; C += |r|; p proportional to w(R, C).
    Differs: weights are computed relative to the largest exponent, as Phi overflows; uniform where
        all of them are 0.
    Feedback: panoramic; a plan that was not seen sleeps (r = 0), so prefix and free move what they
        show and bandit feedback moves nothing; in the order given.
    State: regrets R and sizes C float64[K] (unitless); a Tally of the values.
    Cost: O(K) a round. Errors: ValueError from ``check_feedback``.

    >>> policy = AdaNormalHedge(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.array([0.0, 1.0]), np.ones(2, dtype=bool)))
    >>> bool(policy.probabilities()[1] > 0.5)
    True
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        self._rng, self._tally = rng, Tally(num_plans)
        self._regrets: Floats = np.zeros(num_plans)
        self._sizes: Floats = np.zeros(num_plans)
        self._cached: Floats | None = None

    def choose(self) -> Decision:
        """A plan drawn from ``probabilities``."""
        probabilities = self._current()
        plan = draw(probabilities, self._rng)
        return Decision(plan, float(probabilities[plan]), self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Add each seen plan's lead over the draw, and its size."""
        values, seen = check_feedback(decision, feedback, len(self._regrets))
        if seen.any():
            regrets = instant_regrets(values, seen, self._current())
            self._regrets += regrets
            self._sizes += np.abs(regrets)
            self._tally.add(values, seen)
            self._cached = None

    def probabilities(self) -> Floats:
        """[K] what the regrets say."""
        return self._current().copy()

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._tally.means()

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, _FIELDS)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, _FIELDS, state)
        self._cached = None

    def _current(self) -> Floats:
        if self._cached is None:
            self._cached = adanormalhedge_probabilities(self._regrets, self._sizes)
        return self._cached
