"""Rules that look on while another one ends the draft: where each would have stopped it."""

from __future__ import annotations

from collections.abc import Mapping

from draftwise.protocols import Guide
from draftwise.types import DraftStep


class Watch:
    """A guide, and the other rules that are shown the same steps.

    stops: rule -> tokens it would have drafted, for those that said no while the draft grew.
    """

    def __init__(self, guide: Guide, others: Mapping[str, Guide], stops: dict[str, int]) -> None:
        self._guide, self._others, self._stops = guide, others, stops
        self.is_pure = guide.is_pure
        every = (guide, *others.values())
        self.needs_probs = any(each.needs_probs for each in every)
        self.always_goes_on = all(each.always_goes_on for each in every)
        self.waits_for_hidden = any(each.waits_for_hidden for each in every)
        self.needs_hidden = max(each.needs_hidden for each in every)

    def goes_on(self, step: DraftStep) -> bool:
        """What the guide says; the first no of every other rule is noted."""
        for rule, other in self._others.items():
            if rule not in self._stops and not other.goes_on(step):
                self._stops[rule] = step.depth
        return self._guide.goes_on(step)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Only the guide whose draft it was learns from it."""
        self._guide.learn(num_drafted, num_accepted)
