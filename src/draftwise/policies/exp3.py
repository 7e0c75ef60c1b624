"""The EXP3 family: exponential weights on importance-weighted values of the plan that played."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from draftwise.checks import share
from draftwise.policies.base import check_feedback, draw, softmax
from draftwise.policies.state import Fields, Kept, in_range
from draftwise.types import Decision, Feedback, Floats

_COUNTS = {"num_learned": "_num_learned", "num_chosen": "_num_chosen", "rng": "_rng"}


class PlayedOnly(Kept, ABC):
    """Draws from ``probabilities``, and learns from the played plan's value alone.

    State: float64[K], a leaf's running sums; rounds learned and chosen.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        self._num_plans, self._rng = num_plans, rng
        self._sums: Floats = np.zeros(num_plans)
        self._num_learned, self._num_chosen = 0, 0

    def check_memory(self) -> None:
        in_range("num_learned", self._num_learned, 0)
        in_range("num_chosen", self._num_chosen, 0)

    @abstractmethod
    def probabilities(self) -> Floats:
        """[K] with which each plan is played next."""

    @abstractmethod
    def credit(self, plan: int, value: float, prob: float) -> None:
        """Learn the value of a plan that was played with this probability."""

    def choose(self) -> Decision:
        probabilities = self.probabilities()
        plan = draw(probabilities, self._rng)
        self._num_chosen += 1
        return Decision(plan, float(probabilities[plan]), self._num_chosen)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Credit the played plan; of richer feedback nothing else is used."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if seen[decision.plan]:
            self.credit(decision.plan, float(values[decision.plan]), decision.prob)
            self._num_learned += 1


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

    >>> policy = EXP3(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.ones(2), np.array([True, False])))
    >>> bool(policy.probabilities()[0] > 0.5)
    True
    """

    KEPT: ClassVar[Fields] = {"gains": "_sums", **_COUNTS}

    def __init__(self, num_plans: int, rng: np.random.Generator, gamma: float = 0.4) -> None:
        super().__init__(num_plans, rng)
        self._gamma = share("gamma", gamma)

    def credit(self, plan: int, value: float, prob: float) -> None:
        self._sums[plan] += value / prob

    def probabilities(self) -> Floats:
        return exp3_probabilities(self._sums, self._gamma)

    def estimates(self) -> Floats:
        """[K] mean value estimate, cut to [0, 1]."""
        return np.clip(self._sums / max(self._num_learned, 1), 0.0, 1.0)


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

    >>> policy = EXP3Spec(num_plans=2, rng=np.random.default_rng(0))
    >>> policy.learn(Decision(0, 0.5, 1), Feedback(np.zeros(2), np.array([True, False])))
    >>> bool(policy.probabilities()[1] > 0.5)
    True
    """

    KEPT: ClassVar[Fields] = {"losses": "_sums", **_COUNTS}

    def credit(self, plan: int, value: float, prob: float) -> None:
        """Charge the plan its loss over its probability: eq. (6)."""
        self._sums[plan] += (1.0 - value) / prob

    def probabilities(self) -> Floats:
        return exp3spec_probabilities(self._sums, self._num_learned + 1)

    def estimates(self) -> Floats:
        """[K] one minus the mean loss estimate, cut to [0, 1]."""
        return np.clip(1.0 - self._sums / max(self._num_learned, 1), 0.0, 1.0)
