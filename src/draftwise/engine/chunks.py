"""The size of the prefill chunks that run between rounds."""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST_PIECE, LARGEST_PIECE = 16, 2048  # minimum and maximum prefill chunk, in tokens
FIRST_PIECE = 256  # of a prompt, before the speed of prefill is known
SHARE = 0.5  # maximum duration of a chunk, as a fraction of a round
IDLE_S = 0.8
"""Maximum duration of a long prompt's chunk while no request runs: a request that arrives meanwhile
waits as long. Each chunk costs about one round more, which is to be small beside it."""


class PrefillBudget:
    """Chooses the size of the prefill chunk that runs between two rounds.

    A chunk may take half as long as a round, estimated from earlier chunks, so that even with a
    prompt chunk and a drafter chunk in one step no request waits for more than about two rounds.
    State: recent seconds per round and per prefilled token; medians, so that pauses do not count.
    """

    def __init__(self) -> None:
        self.rounds, self.tokens = deque[float](maxlen=9), deque[float](maxlen=9)

    def budget(self, is_idle: bool) -> int:
        """The chunk size for one step, in tokens; is_idle: no request is running."""
        if not self.tokens:
            return FIRST_PIECE if is_idle else LEAST_PIECE
        if not is_idle and not self.rounds:
            return LEAST_PIECE
        seconds = IDLE_S if is_idle else SHARE * median(self.rounds)
        most = seconds / max(median(self.tokens), 1e-9)
        return int(min(LARGEST_PIECE, max(LEAST_PIECE, most)))

    def record(self, num_tokens: int, seconds: float) -> None:
        if num_tokens >= LEAST_PIECE // 2:  # smaller chunks predict larger ones poorly
            self.tokens.append(seconds / num_tokens)
