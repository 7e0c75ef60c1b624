"""The EXP3 family: exponential weights on importance-weighted values of the plan that played."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np

from draftwise.checks import share
from draftwise.policies.base import Drawn, check_feedback, softmax
from draftwise.policies.state import Fields
from draftwise.types import Decision, Feedback, Floats


class PlayedOnly(Drawn):
    """Learns from the played plan's value alone, whatever else feedback shows.

    A value counts over the probability that travels with its decision, so late feedback stays
    unbiased. State: running sums float64[K] (unitless) and a ``Tally``.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._sums: Floats = np.zeros(num_plans)

    @abstractmethod
    def credit(self, plan: int, value: float, prob: float) -> None:
        """Learn the value of a plan that was played with this probability."""

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if seen[decision.plan]:
            self.credit(decision.plan, float(values[decision.plan]), decision.prob)
            self._tally.add(values, np.arange(self._num_plans) == decision.plan)

    def _mean_sums(self) -> Floats:
        average: Floats = self._sums / max(self._tally.num_rounds, 1)
        return average


class EXP3(PlayedOnly):
    """Draw plans by exponential weights, and uniformly with probability ``gamma`` in (0, 1].

    Source: MetaSD, Algorithm 7 (Auer et al. 2002); gamma 0.4 is its appendix F.4.
    Update: w[played] *= exp(gamma * value / (K prob)); p = (1 - gamma) w / sum w + gamma / K.
    Differs: log w = gamma / K * gains is stored, since w overflows within a long request.
    """

    KEPT: ClassVar[Fields] = {"gains": "_sums", "tally": "_tally", "rng": "_rng"}

    def __init__(self, num_plans: int, rng: np.random.Generator, gamma: float = 0.4) -> None:
        super().__init__(num_plans, rng)
        self._gamma = share("gamma", gamma)

    def credit(self, plan: int, value: float, prob: float) -> None:
        self._sums[plan] += value / prob

    def probabilities(self) -> Floats:
        gamma, num = self._gamma, self._num_plans
        return (1.0 - gamma) * softmax(gamma / num * self._sums) + gamma / num

    def estimates(self) -> Floats:
        return np.clip(self._mean_sums(), 0.0, 1.0)


class EXP3Spec(PlayedOnly):
    """Sample plans by exponential weights whose learning rate decreases over rounds.

    Source: BanditSpec (Hou et al.), Algorithm 5 and eq. (6) (full version: Algorithm 9). Update:
    loss[played] += (1 - value) / prob; p = softmax(-sqrt(log K / (t K)) * loss), with t counting
    the rounds learned from and the present one. Differs: none: with value = accepted / L, ``1 -
    value`` is eq. (6)'s (L + 1 - Y) / L.
    """

    KEPT: ClassVar[Fields] = {"losses": "_sums", "tally": "_tally", "rng": "_rng"}

    def credit(self, plan: int, value: float, prob: float) -> None:
        self._sums[plan] += (1.0 - value) / prob

    def probabilities(self) -> Floats:
        num, round_ = self._num_plans, self._tally.num_rounds + 1
        return softmax(-math.sqrt(math.log(num) / (round_ * num)) * self._sums)

    def estimates(self) -> Floats:
        return np.clip(1.0 - self._mean_sums(), 0.0, 1.0)
