"""Sink and window: the first and the last tokens of a text, in place of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.checks import whole

SINK = 4
"""StreamingLLM's own default."""
ROOM = 128
"""Slots for a draft behind the window: a longer one (TapOut's longest, say) is cut to it."""

_LONGEST = 1 << 24


@dataclass(frozen=True, slots=True)
class Window:
    """What a drafter keeps of a long text: its first ``sink`` and its last ``window`` tokens.

    Source: StreamingLLM (Xiao et al. 2024), section 3.2, as the second cache strategy of MetaSD
        (appendix F.11, table 13): one that was away reads the window alone.
    Update: of a text longer than ``sink + window`` the drafter reads ``text[:sink] +
        text[sink + skipped:]``, at positions 0, 1, 2, ... of what it reads, as StreamingLLM does.
        ``skipped`` is the smallest multiple of half a window with which that is no longer than
        ``sink + window``. Where it changes, the cache is cut back to the sink, and the rest of the
        window is read again.
    Differs: StreamingLLM drops one token a step and keeps keys without their rotary positions, to
        turn them anew in every step. Our cache keeps turned keys, as the library's models write
        them, which cannot be moved; so what is kept is read again, every half window, and is then
        exactly what the model says of these tokens, on any architecture. A place depends on the
        text's length alone, not on earlier plays, so a draft is a function of the text.
    State: none here; a session notes by row what it skipped. Cost: at most two tokens read for
        each of the text, in pieces; a cache of ``sink + window + ROOM`` slots a row.
    Errors: BadValue for a negative sink or a window below 2.

    >>> window = Window(sink=1, window=4)
    >>> [window.skipped(num) for num in (5, 6, 7, 8)]
    [0, 2, 2, 4]
    >>> window.read([10, 11, 12, 13, 14, 15, 16, 17], skipped=4)
    [10, 15, 16, 17]
    """

    sink: int
    window: int

    def __post_init__(self) -> None:
        whole("sink", self.sink, 0, _LONGEST), whole("window", self.window, 2, _LONGEST)

    @property
    def num_slots(self) -> int:
        """Slots of a cache for it, one draft included."""
        return self.sink + self.window + ROOM

    def skipped(self, num_tokens: int) -> int:
        """Tokens behind the sink that are left out of a text of this length."""
        block = self.window // 2
        surplus = max(0, num_tokens - self.sink - self.window)
        return -(-surplus // block) * block

    def read(self, text: Sequence[int], skipped: int) -> Sequence[int]:
        """The text without what was skipped."""
        if not skipped:
            return text
        return [*text[: self.sink], *text[self.sink + skipped :]]
