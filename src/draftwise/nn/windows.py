"""Layers that look back as far as a window, or to a chunk's beginning, keep only that much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwise.nn.storage import Storage

BLOCK = 8
"""Tokens by which a row's storage grows, or an eighth of it where that is more."""
SPARE = 32
"""Tokens, or a window where that is less, by which a row can be cut back behind what is settled."""

Near = tuple[Sequence[int], Sequence[int]]
"""Of each row the first slot that layers read that forget, and the end."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Which layers look back so far only, and how far: a window, a chunk (0 = none), in tokens."""

    layers: frozenset[int]
    window: int = 0
    chunk: int = 0

    def first(self, position: int) -> int:
        """The first slot that a token there, or behind, may look at."""
        firsts = [position - self.window + 1] if self.window else []
        if self.chunk:
            firsts.append(position // self.chunk * self.chunk)
        return max(0, min(firsts))

    def fits(self, storage: Storage, settled: int, end: int) -> bool:
        """Whether slots up to ``end`` are there, and not twice as many as are looked at."""
        wanted = self._num_slots(end - self._kept_from(settled))
        return end - storage.first <= storage.num_slots <= 2 * wanted

    def slide(self, storage: Storage, settled: int, length: int, end: int) -> Storage:
        """With room up to ``end``, and without what no token behind ``settled`` may look at.

        length: of the row, of which the rest is copied.
        """
        first = max(storage.first, self._kept_from(settled))
        return storage.grown(length, self._num_slots(end - first), first)

    def most_slots(self, num_fed: int) -> int:
        """Slots that a row of any length has at most, if feeds are no wider than that."""
        return self._num_slots(max(self.window, self.chunk) + self._spare + num_fed)

    @property
    def _spare(self) -> int:
        return min(SPARE, max(self.window, self.chunk))

    def _kept_from(self, settled: int) -> int:
        return self.first(max(0, settled - self._spare))

    def _num_slots(self, num_tokens: int) -> int:
        """An eighth more: what slides in each round would be copied in each."""
        return num_tokens + max(BLOCK, num_tokens // 8)


def from_first(mask: Tensor, firsts: Sequence[int], ends: Sequence[int]) -> Tensor:
    """[R, 1, T, used] of a mask [R or 1, 1, T, all slots]: each row from its first slot on.

    ends: of each row, behind the last slot that it reads.
    """
    if len(set(firsts)) == 1:
        return mask[..., firsts[0] :]
    used = max(end - first for first, end in zip(firsts, ends, strict=True))
    rows = mask.expand(len(firsts), *mask.shape[1:])
    cut = [row[..., first : first + used] for row, first in zip(rows, firsts, strict=True)]
    return torch.stack([pad(row, (0, used - row.shape[-1])) for row in cut])
