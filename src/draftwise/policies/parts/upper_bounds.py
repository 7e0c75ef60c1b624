"""What the UCB family shares: each plan once, then the one with the highest index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import Fields, Kept
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats


class UpperBounds(Kept, ABC):
    """Plays the plan with the highest index; a leaf says what its index is.

    State: a Tally: counts, sums, squares, chosen float64[K] (unitless); rounds learned.
    """

    KEPT: ClassVar[Fields] = {"tally": "_tally"}

    def __init__(self, num_plans: int) -> None:
        self._num_plans, self._tally = num_plans, Tally(num_plans)

    @abstractmethod
    def indices(self, tally: Tally) -> Floats:
        """[K] what each plan may be worth; something was seen of all of them."""

    def choose(self) -> Decision:
        """An untried plan, else the best index (ties go to the first)."""
        plan = self._best()
        return Decision(plan, 1.0, self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Add the seen values to the means."""
        self._tally.add(*check_feedback(decision, feedback, self._num_plans))

    def probabilities(self) -> Floats:
        """[K] one-hot on the plan that ``choose`` would play."""
        return one_hot(self._best(), self._num_plans)

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._tally.means()

    def _best(self) -> int:
        untried = self._tally.unseen()
        return int(self.indices(self._tally).argmax()) if untried is None else untried
