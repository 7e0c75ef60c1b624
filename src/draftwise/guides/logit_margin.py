"""Stop behind a token at which two tokens were almost equally likely."""

from __future__ import annotations

from draftwise.checks import probability
from draftwise.guides.looking import Looking
from draftwise.types import DraftStep


class LogitMargin(Looking):
    """Stop when the two largest q at the token kept last were closer than a threshold.

    Source: TapOut, table 1 and appendix A.1 (LogitMargin, threshold 0.2): despite its name the
    margin is one of probabilities. Update: none. Differs: none. State: none. Cost: O(V) a token.
    Errors: ValueError if the threshold is not in [0, 1].

    >>> LogitMargin(0.2).goes_on(DraftStep(depth=1, length=5, margin=0.1))
    False
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = probability("threshold", threshold)

    def goes_on(self, step: DraftStep) -> bool:
        """Whether the likeliest token stood out; always at depth 0."""
        return step.depth == 0 or step.margin >= self._threshold
