"""Hedge: exponential weights on losses that are known for every plan."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from draftwise.checks import optional, scale
from draftwise.policies.parts.drawn import Hedging
from draftwise.policies.parts.probability import softmax
from draftwise.policies.parts.state import Fields
from draftwise.types import Floats


def hedge_probabilities(gains: Floats, eta: float | None, round: int) -> Floats:
    """[K] ``softmax(eta * gains)``; eta None is the anytime rate ``sqrt(log K / t)``, t >= 1.

    >>> hedge_probabilities(np.array([0.0, math.log(3)]), eta=1.0, round=1).round(9).tolist()
    [0.25, 0.75]
    """
    rate = math.sqrt(math.log(len(gains)) / round) if eta is None else eta
    return softmax(rate * gains)


class Hedge(Hedging):
    """Draw plans by exponential weights on all plans' losses.

    Source: HedgeSpec, appendix B.1, remark on Algorithm 1: w_i <- w_i exp(-eta * loss_i), PREDICT
        the normalised weights. The anytime rate (``eta=none``, the default) is that of BanditSpec
        Algorithm 5, sqrt(log K / (t K)), without the K that bandit feedback costs.
    Update: gain += (the draw's mean loss) - loss; p = softmax(eta * gain). Subtracting one number
        from all losses of a round changes no probability and keeps the sums small.
    Differs: a plan that was not seen is charged the mean loss of those that were (it sleeps); so
        with bandit feedback nothing ever moves, as the algorithm has no use for it.
    Feedback: panoramic (prefix and free move what they show), in any order when eta is fixed.
    State: gains float64[K] (cumulative regrets, unitless); a Tally of the values.
    Cost: O(K) a round.
    Errors: ValueError if eta is not from 1e-6 to 1e6.

    >>> from draftwise.types import Decision, Feedback
    >>> policy = Hedge(num_plans=2, rng=np.random.default_rng(0), eta=math.log(3))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.array([0.0, 1.0]), np.ones(2, dtype=bool)))
    >>> policy.probabilities().round(9).tolist()
    [0.25, 0.75]
    """

    KEPT: ClassVar[Fields] = {"gains": "_gains", "tally": "_tally", "rng": "_rng"}

    def __init__(self, num_plans: int, rng: np.random.Generator, eta: float | None = None) -> None:
        super().__init__(num_plans, rng)
        self._eta = optional(scale, "eta", eta)
        self._gains: Floats = np.zeros(num_plans)

    def take(self, regrets: Floats) -> None:
        """Raise the gains of the plans that lost less than the draw does on average."""
        self._gains += regrets

    def weights(self) -> Floats:
        """[K] exponential weights."""
        return hedge_probabilities(self._gains, self._eta, self._tally.num_rounds + 1)
