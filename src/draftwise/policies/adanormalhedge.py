"""AdaNormalHedge: hedging without a rate, whose regret is small when the best plan loses little."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from draftwise.policies.parts.drawn import Hedging
from draftwise.policies.parts.state import Fields, in_range
from draftwise.types import Floats


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


class AdaNormalHedge(Hedging):
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

    >>> from draftwise.types import Decision, Feedback
    >>> policy = AdaNormalHedge(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.array([0.0, 1.0]), np.ones(2, dtype=bool)))
    >>> bool(policy.probabilities()[1] > 0.5)
    True
    """

    KEPT: ClassVar[Fields] = {
        "regrets": "_regrets",
        "sizes": "_sizes",
        "tally": "_tally",
        "rng": "_rng",
    }

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._regrets: Floats = np.zeros(num_plans)
        self._sizes: Floats = np.zeros(num_plans)

    def check_memory(self) -> None:
        """Sizes are sums of what is not negative."""
        in_range("sizes", self._sizes, 0)

    def take(self, regrets: Floats) -> None:
        """R += r; C += |r|."""
        self._regrets += regrets
        self._sizes += np.abs(regrets)

    def weights(self) -> Floats:
        """[K] ``adanormalhedge_probabilities``."""
        return adanormalhedge_probabilities(self._regrets, self._sizes)
