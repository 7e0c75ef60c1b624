"""Stop behind a token that the drafter was not sure of."""

from __future__ import annotations

from draftwise.checks import probability
from draftwise.guides.looking import Looking
from draftwise.types import DraftStep


class MaxConfidence(Looking):
    """Stop when the largest q at the token kept last fell below a threshold.

    Source: TapOut, table 1 (Max-Confidence, threshold 0.8). Update: none. Differs: none; the token
    itself stays in the draft, so the output's law is untouched. State: none. Cost: O(V) a token.
    Errors: ValueError if the threshold is not in [0, 1].

    >>> MaxConfidence(0.8).goes_on(DraftStep(depth=1, length=5, max_prob=0.7))
    False
    """

    def __init__(self, threshold: float = 0.8) -> None:
        self._threshold = probability("threshold", threshold)

    def goes_on(self, step: DraftStep) -> bool:
        """Whether the token kept last was sure enough; always at depth 0."""
        return step.depth == 0 or step.max_prob >= self._threshold
