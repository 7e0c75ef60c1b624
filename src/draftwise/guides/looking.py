"""What rules share that look at q of the token kept last, and remember nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod

from draftwise.types import DraftStep


class Looking(ABC):
    """A rule of one look; a leaf says what it looks for."""

    needs_probs = True
    is_pure = True
    always_goes_on, waits_for_hidden, needs_hidden = False, False, 0

    @abstractmethod
    def goes_on(self, step: DraftStep) -> bool:
        """Whether one more token is drafted."""

    def learn(self, num_drafted: int, num_accepted: int) -> None:  # noqa: B027
        """Nothing to learn."""
