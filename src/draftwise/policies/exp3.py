"""EXP3: exponential weights on importance-weighted values, mixed with the uniform draw."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from draftwise.checks import share
from draftwise.policies.parts.drawn import PlayedOnly
from draftwise.policies.parts.probability import softmax
from draftwise.policies.parts.state import Fields
from draftwise.types import Floats


def exp3_probabilities(gains: Floats, gamma: float) -> Floats:
    """[K] ``(1 - gamma) softmax(gamma / K * gains) + gamma / K``.

    >>> exp3_probabilities(np.array([0.0, 0.0]), gamma=0.5).tolist()
    [0.5, 0.5]
    """
    num_plans = len(gains)
    return (1.0 - gamma) * softmax(gamma / num_plans * gains) + gamma / num_plans


class EXP3(PlayedOnly):
    """Draw plans by exponential weights, and uniformly with probability ``gamma``.

    Source: MetaSD, Algorithm 7 (Auer et al. 2002); gamma 0.4 is its appendix F.4.
    Update: w[played] *= exp(gamma * value / (K prob)); p = (1 - gamma) w / sum w + gamma / K.
    Differs: (1) log w = gamma / K * gains is stored, as the box's w overflows within a long
        request; (2) the probability is the one that travels with the decision, so late feedback
        stays unbiased.
    Feedback: bandit, in any order; of richer feedback only the played plan's value is used.
    State: gains float64[K] (cumulative value estimates, unitless); rounds learned and chosen.
    Cost: O(K) a round. Errors: ValueError if gamma is not in (0, 1].

    >>> from draftwise.types import Decision, Feedback
    >>> policy = EXP3(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.ones(2), np.array([True, False])))
    >>> bool(policy.probabilities()[0] > 0.5)
    True
    """

    KEPT: ClassVar[Fields] = {
        "gains": "_gains",
        "num_learned": "_num_learned",
        "num_chosen": "_num_chosen",
        "rng": "_rng",
    }

    def __init__(self, num_plans: int, rng: np.random.Generator, gamma: float = 0.4) -> None:
        super().__init__(num_plans, rng)
        self._gamma = share("gamma", gamma)
        self._gains: Floats = np.zeros(num_plans)

    def credit(self, plan: int, value: float, prob: float) -> None:
        """Credit the plan with its value over its probability."""
        self._gains[plan] += value / prob

    def probabilities(self) -> Floats:
        """[K] exponential weights, mixed with uniform."""
        return exp3_probabilities(self._gains, self._gamma)

    def estimates(self) -> Floats:
        """[K] mean value estimate, cut to [0, 1]."""
        return np.clip(self._gains / max(self._num_learned, 1), 0.0, 1.0)
