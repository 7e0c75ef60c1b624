"""Hedge: exponential weights on losses that are known for every plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from draftwise.policies.parts.checks import check_feedback, check_positive
from draftwise.policies.parts.instant_regrets import instant_regrets
from draftwise.policies.parts.probability import draw, softmax
from draftwise.policies.parts.state import dump, load
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats

_FIELDS = ("_gains", "_tally", "_rng")


def hedge_probabilities(gains: Floats, eta: float | None, round: int) -> Floats:
    """[K] ``softmax(eta * gains)``; eta None is the anytime rate ``sqrt(log K / t)``, t >= 1.

    >>> hedge_probabilities(np.array([0.0, math.log(3)]), eta=1.0, round=1).round(9).tolist()
    [0.25, 0.75]
    """
    rate = math.sqrt(math.log(len(gains)) / round) if eta is None else eta
    return softmax(rate * gains)


class Hedge:
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
    Errors: ValueError if eta is not a finite number above 0.

    >>> policy = Hedge(num_plans=2, rng=np.random.default_rng(0), eta=math.log(3))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.array([0.0, 1.0]), np.ones(2, dtype=bool)))
    >>> policy.probabilities().round(9).tolist()
    [0.25, 0.75]
    """

    def __init__(self, num_plans: int, rng: np.random.Generator, eta: float | None = None) -> None:
        self._eta = None if eta is None else check_positive("eta", eta)
        self._rng, self._tally = rng, Tally(num_plans)
        self._gains: Floats = np.zeros(num_plans)

    def choose(self) -> Decision:
        """A plan drawn from ``probabilities``."""
        probabilities = self.probabilities()
        plan = draw(probabilities, self._rng)
        return Decision(plan, float(probabilities[plan]), self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Raise the gains of the plans that lost less than the draw does on average."""
        values, seen = check_feedback(decision, feedback, len(self._gains))
        if seen.any():
            self._gains += instant_regrets(values, seen, self.probabilities())
            self._tally.add(values, seen)

    def probabilities(self) -> Floats:
        """[K] exponential weights."""
        return hedge_probabilities(self._gains, self._eta, self._tally.num_rounds + 1)

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._tally.means()

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, _FIELDS)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, _FIELDS, state)
