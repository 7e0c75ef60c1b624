"""How much may be read while other rows wait."""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST_PIECE, LARGEST_PIECE = 16, 2048
"""Tokens that are read at once, at least and at most."""

_WINDOW = 9

SHARE = 0.5
"""Of a round's seconds, what one reader may take between two rounds."""


class Pace:
    """How many tokens of a text may be read between two rounds of rows that write.

    As many as take half as long as a round does, by what reading took so far: with a prompt's piece
    and a drafter's in one step no row waits for more than about two rounds. State: the latest
    seconds of a round, and of a token that was read; their medians count, since a pause of the
    machine must not let a long piece through.
    """

    def __init__(self) -> None:
        self.rounds, self.tokens = deque[float](maxlen=_WINDOW), deque[float](maxlen=_WINDOW)

    def budget(self, is_idle: bool) -> int:
        """Tokens for one step; nothing limits them but memory where no row writes."""
        if is_idle:
            return LARGEST_PIECE
        if not self.tokens or not self.rounds:
            return LEAST_PIECE
        most = SHARE * median(self.rounds) / max(median(self.tokens), 1e-9)
        return int(min(LARGEST_PIECE, max(LEAST_PIECE, most)))

    def saw(self, num_tokens: int, seconds: float) -> None:
        """So many tokens took so long; small pieces say little of large ones."""
        if num_tokens >= LEAST_PIECE // 2:
            self.tokens.append(seconds / num_tokens)
