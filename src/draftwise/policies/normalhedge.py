"""NormalHedge: hedging without a rate to tune; plans that do worse than the draw get nothing."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from draftwise.policies.parts.drawn import Hedging
from draftwise.policies.parts.state import Fields
from draftwise.types import Floats

_TOLERANCE = 1e-12  # relative; far above rounding, so Newton's falling steps always end
_ROUNDING = 1e-9  # a lead this small is rounding; the weights know no scale and would follow it


def normalhedge_precision(regrets: Floats) -> float:
    """``1 / (2 c)`` for the c > 0 with ``mean(exp([R]+^2 / (2c))) = e``; some R is above 0.

    With s = 1/(2c), log mean exp(s [R]+^2) - 1 is convex and increasing in s, and not negative at
    s = (1 + log K) / max R^2: Newton's steps from there go down to the root and never pass it.

    >>> round(normalhedge_precision(np.array([2.0, 2.0])), 12)
    0.25
    """
    squares = np.maximum(regrets, 0.0) ** 2
    largest = float(squares.max())
    shape = squares / largest  # in [0, 1], so that no scale of the regrets over- or underflows
    steep = 1.0 + math.log(len(shape))
    while True:
        weights = np.exp(steep * shape)
        total = float(weights.sum())
        step = (math.log(total / len(shape)) - 1.0) * total / float(weights @ shape)
        if step <= _TOLERANCE * steep:
            return steep / largest
        steep -= step


def normalhedge_probabilities(regrets: Floats) -> Floats:
    """[K] proportional to ``[R]+ / c * exp([R]+^2 / (2c))``; uniform while no R is above 0.

    >>> normalhedge_probabilities(np.array([1.0, -1.0])).tolist()
    [1.0, 0.0]
    """
    positive = np.maximum(regrets, 0.0)
    top = float(positive.max())
    if top <= _ROUNDING:
        return np.full(len(regrets), 1.0 / len(regrets))
    precision = normalhedge_precision(regrets)
    weights = positive / top * np.exp(precision * positive**2)
    normalised: Floats = weights / weights.sum()
    return normalised


class NormalHedge(Hedging):
    """Draw plans by how far each one is ahead of the draw itself.

    Source: HedgeSpec, Figure 7 (NormalHedge, Chaudhuri et al. 2009).
    Update: R_i += (mean loss of the draw) - loss_i; find c with mean(exp([R]+^2 / 2c)) = e;
        p_i proportional to [R_i]+ / c * exp([R_i]+^2 / 2c).
    Differs: (1) the figure leaves p open while no regret is above 0: uniform here, and leads
        below 1e-9 count as rounding; (2) a plan that
        was not seen sleeps: its regret stays, and the mean is over the seen ones; so with bandit
        feedback nothing ever moves, as the algorithm has no use for it.
    Feedback: panoramic (prefix and free move what they show), in the order given.
    State: regrets float64[K] (cumulative, unitless); a Tally of the values.
    Cost: O(K) a round, times about five Newton steps.
    Errors: ValueError from ``check_feedback``.

    >>> from draftwise.types import Decision, Feedback
    >>> policy = NormalHedge(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.array([0.0, 1.0]), np.ones(2, dtype=bool)))
    >>> policy.choose()
    Decision(plan=1, prob=1.0, round=1)
    """

    KEPT: ClassVar[Fields] = {"regrets": "_regrets", "tally": "_tally", "rng": "_rng"}

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._regrets: Floats = np.zeros(num_plans)

    def take(self, regrets: Floats) -> None:
        """R += r."""
        self._regrets += regrets

    def weights(self) -> Floats:
        """[K] ``normalhedge_probabilities``."""
        return normalhedge_probabilities(self._regrets)
