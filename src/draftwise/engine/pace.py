"""How much may be read while other rows wait."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_PIECE, LARGEST_PIECE = 32, 2048
"""Tokens that are read at once, at least and at most."""


@dataclass(slots=True)
class Pace:
    """How many tokens of a text may be read between two rounds of rows that write.

    As many as take as long as a round does, by what reading took so far: then no row waits for
    more than about two rounds. token_s: seconds a token, a running mean; 0 = nothing read yet.
    """

    token_s: float = 0.0

    def budget(self, round_s: float, is_idle: bool) -> int:
        """Tokens for one step; nothing limits them but memory where no row writes."""
        if is_idle:
            return LARGEST_PIECE
        if not self.token_s:
            return LEAST_PIECE
        return int(min(LARGEST_PIECE, max(LEAST_PIECE, round_s / self.token_s)))

    def saw(self, num_tokens: int, seconds: float) -> None:
        """So many tokens took so long; small pieces say little of large ones."""
        if num_tokens >= LEAST_PIECE // 2:
            new = seconds / num_tokens
            self.token_s = new if not self.token_s else 0.7 * self.token_s + 0.3 * new
