"""Stop behind a token at which the drafter's entropy was high."""

from __future__ import annotations

import math

from draftwise.checks import LARGE, number
from draftwise.guides.looking import Looking
from draftwise.types import DraftStep


def root_entropy(nats: float) -> float:
    """The square root of an entropy; rounding errors below 0 count as 0, and nan stays nan.

    >>> root_entropy(0.25), root_entropy(-1e-9)
    (0.5, 0.0)
    """
    return math.sqrt(max(nats, 0.0))


class Svip(Looking):
    """Stop when the root of the entropy of q at the token kept last is above a threshold.

    Source: TapOut, table 1 and appendix A.1 (SVIP, of Zhang et al. 2025): sqrt(H) > 0.6; H in nats.
    Update: none. Differs: none known; the paper names no unit for H, and 0.6 is a threshold for
    nats. State: none. Cost: O(V) a token. Errors: ValueError if the threshold is below 0.

    >>> Svip(0.6).goes_on(DraftStep(depth=1, length=5, entropy=0.35))
    True
    >>> Svip(0.6).goes_on(DraftStep(depth=1, length=5, entropy=0.37))
    False
    """

    def __init__(self, threshold: float = 0.6) -> None:
        self._threshold = number("threshold", threshold, 0, LARGE)

    def goes_on(self, step: DraftStep) -> bool:
        """Whether the entropy at the token kept last was low enough; always at depth 0."""
        return step.depth == 0 or root_entropy(step.entropy) <= self._threshold
