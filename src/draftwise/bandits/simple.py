"""Baselines for learning: policies that do not learn while they run."""

from __future__ import annotations

import numpy as np

from draftwise.bandits.base import SampledPolicy, check_feedback, one_hot
from draftwise.checks import whole
from draftwise.types import Decision, Feedback, Floats


class FixedPlan:
    """Always play one plan.

    Source: the static baseline of all five papers (Leviathan et al. 2023). Feedback is validated
    and ignored. State: the number of rounds. Errors: ValueError if ``plan`` is not in 0 .. K-1.
    """

    def __init__(self, num_plans: int, plan: int = 0) -> None:
        if not 0 <= whole("plan", plan) < num_plans:
            raise ValueError(f"plan {plan} is not one of the {num_plans} plans 0..{num_plans - 1}")
        self._plan, self._num_plans, self._round = plan, num_plans, 0

    def choose(self) -> Decision:
        self._round += 1
        return Decision(self._plan, 1.0, self._round)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        check_feedback(decision, feedback, self._num_plans)

    def probabilities(self) -> Floats:
        return one_hot(self._plan, self._num_plans)

    def estimates(self) -> Floats:
        return self.probabilities()


class Random(SampledPolicy):
    """Play a plan drawn uniformly at random; means are tracked for display only.

    Source: MetaSD (Kim et al.), tables 3 and 4, the baseline ``Rand`` (uniformly random).
    """

    def choose(self) -> Decision:
        plan = int(self._rng.integers(self._num_plans))
        return Decision(plan, 1.0 / self._num_plans, self._tally.choose(plan))

    def probabilities(self) -> Floats:
        return np.full(self._num_plans, 1.0 / self._num_plans)
