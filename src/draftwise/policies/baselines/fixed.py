"""Always the same plan."""

from __future__ import annotations

from typing import ClassVar

from draftwise.checks import whole
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import Fields, Kept, in_range
from draftwise.types import Decision, Feedback, Floats


class Fixed(Kept):
    """Play one plan for ever.

    Source: the static baseline of all five papers (Leviathan et al. 2023).
    Update: none. Differs: none. Feedback: ignored (but checked).
    State: the number of rounds. Cost: O(1).
    Errors: ValueError if ``plan`` is not in 0 .. K-1.

    >>> Fixed(num_plans=3, plan=2).choose()
    Decision(plan=2, prob=1.0, round=1)
    """

    KEPT: ClassVar[Fields] = {"round": "_round"}

    def __init__(self, num_plans: int, plan: int = 0) -> None:
        if not 0 <= whole("plan", plan) < num_plans:
            raise ValueError(f"plan {plan} is not one of the {num_plans} plans 0..{num_plans - 1}")
        self._plan, self._num_plans, self._round = plan, num_plans, 0

    def check_memory(self) -> None:
        """The plan is one of those that there are."""
        in_range("round", self._round, 0)
        in_range("plan", self._plan, 0, self._num_plans - 1)

    def choose(self) -> Decision:
        """The one plan, with probability 1."""
        self._round += 1
        return Decision(self._plan, 1.0, self._round)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Nothing to learn; nonsense is turned away all the same."""
        check_feedback(decision, feedback, self._num_plans)

    def probabilities(self) -> Floats:
        """[K] one-hot."""
        return one_hot(self._plan, self._num_plans)

    def estimates(self) -> Floats:
        """[K] one-hot: the only opinion it has."""
        return self.probabilities()
