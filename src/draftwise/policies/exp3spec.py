"""EXP3Spec: exponential weights on importance-weighted losses, at an anytime rate."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from draftwise.policies.parts.drawn import PlayedOnly
from draftwise.policies.parts.probability import softmax
from draftwise.policies.parts.state import Fields
from draftwise.types import Floats


def exp3spec_probabilities(losses: Floats, round: int) -> Floats:
    """[K] ``softmax(-eta_t * losses)`` with ``eta_t = sqrt(log K / (t K))`` in round t >= 1.

    >>> exp3spec_probabilities(np.zeros(2), round=1).tolist()
    [0.5, 0.5]
    """
    num_plans = len(losses)
    return softmax(-math.sqrt(math.log(num_plans) / (round * num_plans)) * losses)


class EXP3Spec(PlayedOnly):
    """Draw plans by exponential weights whose rate falls with the rounds.

    Source: BanditSpec (Hou et al.), Algorithm 5 and eq. (6) (full version: Algorithm 9).
    Update: loss[played] += (1 - value) / prob; p = softmax(-sqrt(log K / (t K)) * loss).
    Differs: (1) with value = accepted / L, ``1 - value`` is eq. (6)'s (L + 1 - Y) / L; (2) the
        probability is the one that travels with the decision, so late feedback stays unbiased;
        t counts the rounds learned from.
    Feedback: bandit, in any order; of richer feedback only the played plan's value is used, since
        eq. (6) knows no other probability of being seen.
    State: losses float64[K] (cumulative loss estimates, unitless); rounds learned and chosen.
    Cost: O(K) a round.
    Errors: ValueError from ``check_feedback``.

    >>> from draftwise.types import Decision, Feedback
    >>> policy = EXP3Spec(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.zeros(2), np.array([True, False])))
    >>> bool(policy.probabilities()[1] > 0.5)
    True
    """

    KEPT: ClassVar[Fields] = {
        "losses": "_losses",
        "num_learned": "_num_learned",
        "num_chosen": "_num_chosen",
        "rng": "_rng",
    }

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._losses: Floats = np.zeros(num_plans)

    def credit(self, plan: int, value: float, prob: float) -> None:
        """Charge the plan its loss over its probability: eq. (6)."""
        self._losses[plan] += (1.0 - value) / prob

    def probabilities(self) -> Floats:
        """[K] exponential weights of the losses."""
        return exp3spec_probabilities(self._losses, self._num_learned + 1)

    def estimates(self) -> Floats:
        """[K] one minus the mean loss estimate, cut to [0, 1]."""
        return np.clip(1.0 - self._losses / max(self._num_learned, 1), 0.0, 1.0)
