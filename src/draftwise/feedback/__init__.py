"""What a round reveals to a policy: the played plan, its prefixes, all that is free, or everything.

The engine hands every round's decision and evidence to ``reveal`` and passes on to the policy what
comes back, in that order; at the end of a request it passes on what ``flush`` gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from draftwise.lazy import exports
from draftwise.types import Decision, Evidence, Feedback

if TYPE_CHECKING:
    from draftwise.feedback.panoramic import Panoramic as Panoramic
    from draftwise.feedback.values import drafted_by as drafted_by

__getattr__, __dir__ = exports(__name__)
DueFeedback = list[tuple[Decision, Feedback]]
"""Feedback that is due, with the decisions it belongs to, in the order to learn them."""


class FeedbackBuilder(Protocol):
    """Turns evidence into feedback, now or later; one for each request.

    panoramic: whether the engine must score every drafter on the verified text; every: in how many
    rounds it must do so once, which may change from round to round. compares_rules: whether a
    drafter's other rules are asked where they would have stopped.
    """

    @property
    def panoramic(self) -> bool: ...

    @property
    def every(self) -> int: ...

    @property
    def compares_rules(self) -> bool: ...

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        """What the policy may learn now, in order; empty while it has to wait."""
        ...

    def flush(self) -> DueFeedback:
        """What is still waiting when the request ends, as far as it is known."""
        ...
