"""The target's hidden states along one text: what drafters that look inside it draft from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class Features:
    """Hidden states [length, D] of each tapped layer after the tokens of one text.

    Only what a verifying forward said about kept tokens is put here, so every position that a
    drafter reads is the target's own, however long it did not look. State: per tap one tensor that
    grows by doubling: D floats a token, as many tokens as the target has read. ``length``: those
    known, one less than the text has, since its last token was not read yet.
    """

    def __init__(self) -> None:
        self.length = 0
        self._stored: dict[int, Tensor] = {}

    def put(self, start: int, hidden: Mapping[int, Tensor]) -> None:
        """Append [n, D] states by tap, of the positions from ``start`` on.

        Raises ValueError unless ``start`` is where the known ones end.
        """
        if start != self.length:
            raise ValueError(
                f"hidden states of positions 0 to {self.length - 1} are known: those of {start} "
                "do not follow"
            )
        for tap, states in hidden.items():
            end = start + len(states)
            stored = self._stored.get(tap)
            if stored is None or end > len(stored):
                grown = states.new_empty((max(64, 2 * end), states.shape[-1]))
                if stored is not None:
                    grown[:start] = stored[:start]
                stored = self._stored[tap] = grown
            stored[start:end] = states
            self.length = end

    def begin_like(self, other: Features, length: int) -> None:
        """Take over the first ``length`` positions of another text that begins alike."""
        length = min(length, other.length)
        self._stored = {tap: states[:length].clone() for tap, states in other._stored.items()}
        self.length = length

    def get(self, taps: Sequence[int], start: int, end: int) -> Tensor:
        """[end - start, taps x D] states of these taps side by side.

        Raises ValueError for positions that are not known.
        """
        if end > self.length:
            raise ValueError(
                f"hidden states up to position {end - 1} are asked for, and only {self.length} "
                "positions are known"
            )
        parts = [self._stored[tap][start:end] for tap in taps]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
