"""Texts whose keys and values are still there: the longest common beginning is not read again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.drafters.protocol import Context

LEAST = 32
"""Tokens that a common beginning must have to be worth keeping track of."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A row that begins as a prompt does: its context, and how many tokens they share."""

    context: Context
    length: int


class Prefixes:
    """Rows of requests that have ended, kept for those to come; least recently used out first.

    num_rows: as many are kept at most; 0 = none, and no beginning is looked for anywhere.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._kept: dict[int, Context] = {}

    def keep(self, context: Context) -> list[int]:
        """Keep a row that has ended; returns the rows that must go for it."""
        self._kept[context.row] = context
        surplus = len(self._kept) - self.num_rows
        return [self.drop() for _ in range(surplus)]

    def drop(self) -> int:
        """Let the least recently used row go; returns it. KeyError where there is none."""
        row = next(iter(self._kept))
        del self._kept[row]
        return row

    def take(self, row: int) -> bool:
        """Whether this row was kept; it is the caller's now."""
        return self._kept.pop(row, None) is not None

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each kept row."""
        return [len(context.tokens) for context in self._kept.values()]

    def find(self, prompt: Context, running: Iterable[Context]) -> Beginning | None:
        """The longest common beginning, of kept rows and of those that run; None = too short.

        Of the same tenant alone, and of no private text: how soon an answer comes, and what is
        counted, would tell others what they said.
        """
        if self.num_rows == 0:
            return None
        wanted = np.asarray(prompt.tokens)
        # a kept row is taken over, and not copied: of equals it comes first
        found = [
            Beginning(context, common(wanted, context.tokens))
            for context in (*reversed(self._kept.values()), *running)
            if context.tenant == prompt.tenant and not context.is_private
        ]
        best = max(found, key=lambda beginning: beginning.length, default=None)
        return best if best is not None and best.length >= LEAST else None


def common(wanted: np.ndarray, text: Sequence[int]) -> int:
    """Tokens that two texts have in common at their beginning.

    >>> common(np.array([1, 2, 3]), [1, 2, 4, 5])
    2
    """
    num = min(len(wanted), len(text))
    differs = np.flatnonzero(wanted[:num] != np.asarray(text[:num]))
    return int(differs[0]) if len(differs) else num
