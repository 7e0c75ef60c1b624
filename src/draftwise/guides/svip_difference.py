"""Stop behind a token at which the drafter's entropy jumped up."""

from __future__ import annotations

from draftwise.checks import LARGE, number
from draftwise.guides.looking import Looking
from draftwise.guides.svip import root_entropy
from draftwise.types import DraftStep


class SvipDifference(Looking):
    """Stop when the root of the entropy of q rose by more than a threshold over the token before.

    Source: TapOut, table 1 and appendix A.1 (SVIPDifference, threshold 0.2), H in nats.
    Update: none. Differs: the first token of a draft has none before it (the text's last token was
    the target's), so the rule goes on behind it. State: none. Cost: O(V) a token. Errors:
    ValueError if the threshold is not a number.

    >>> rule = SvipDifference(0.2)
    >>> rule.goes_on(DraftStep(depth=2, length=5, entropy=0.25, entropy_before=0.16))
    True
    >>> rule.goes_on(DraftStep(depth=2, length=5, entropy=0.25, entropy_before=0.04))
    False
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = number("threshold", threshold, -LARGE, LARGE)

    def goes_on(self, step: DraftStep) -> bool:
        """Whether the entropy did not jump; always at depths 0 and 1."""
        rise = root_entropy(step.entropy) - root_entropy(step.entropy_before)
        return not rise > self._threshold  # nan, where no token is before the last, is no rise
