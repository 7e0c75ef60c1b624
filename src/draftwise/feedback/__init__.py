"""What a round reveals to a policy: the played plan, its prefixes, all that is free, or everything.

The engine passes every round's decision and evidence to ``reveal``, and what it returns to the
policy, in order; at the end of a request, what ``flush`` returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from draftwise.lazy import exports
from draftwise.types import Decision, Evidence, Feedback

if TYPE_CHECKING:
    from draftwise.feedback.builders import Panoramic as Panoramic
    from draftwise.feedback.builders import drafted_by as drafted_by

__getattr__, __dir__ = exports(__name__)
DueFeedback = list[tuple[Decision, Feedback]]
"""Feedback that is due, with its decisions, in the order in which to learn it."""


class FeedbackBuilder(Protocol):
    """Turns evidence into feedback, at once or later; one per request.

    panoramic: whether the engine must score every drafter on the verified text; every: in how many
    rounds it must do so once, which may change from round to round. compares_rules: whether a
    drafter's other rules are evaluated for where they would have stopped.
    """

    @property
    def panoramic(self) -> bool: ...

    @property
    def every(self) -> int: ...

    @property
    def compares_rules(self) -> bool: ...

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        """Feedback that the policy may learn from now, in order; may be empty."""
        ...

    def flush(self) -> DueFeedback:
        """Pending feedback at the end of the request, as far as its values are known."""
        ...
