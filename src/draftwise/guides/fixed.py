"""Draft the plan's whole length."""

from __future__ import annotations

from draftwise.types import DraftStep


class Fixed:
    """Never stop before the plan's length.

    Source: Leviathan et al. (2023). State: none. Cost: O(1).

    >>> Fixed().goes_on(DraftStep(depth=3, length=5))
    True
    """

    needs_probs = False
    is_pure = True
    always_goes_on, waits_for_hidden, needs_hidden = True, False, 0

    def goes_on(self, step: DraftStep) -> bool:
        """Always."""
        return True

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""
