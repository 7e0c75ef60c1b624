"""Where fed tokens stand, and what they may look at: positions and masks of a forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.cache import Span
from draftwise.nn.masks import Mask, Masks, ragged_slots
from draftwise.nn.trees import Branches, tree_masks
from draftwise.nn.windows import Near
from draftwise.types import Ints


class Sight:
    """Positions and masks, for rows side by side and for each by itself.

    near: what layers that forget read of these rows (``RaggedCache.near``); trees: [R], or nothing.
    """

    def __init__(self, masks: Masks, device: torch.device) -> None:
        self._masks, self._device = masks, device
        self._numbers, self._num_numbers = torch.arange(0, device=device), 0

    def of_rows(
        self, spans: Sequence[Span], trees: Sequence[Branches | None], near: Near | None
    ) -> tuple[Tensor, Mask]:
        """Positions [R, T] of rows that are padded to the longest, and their mask."""
        counts = [span.count for span in spans]
        used, width = max(span.end for span in spans), max(counts)
        is_even = min(span.start for span in spans) == used - width and min(counts) == width
        if trees or not is_even:
            places = ragged_slots([span.start for span in spans], counts)
            return self.of_places(trees, places, used, near)
        positions = self._slots(used)[used - width :].expand(len(counts), width)
        # one token sees everything; from the first on it is plain causal attention
        if self._masks.can_skip and (width == 1 or width == used):
            return positions, None
        return positions, self._masks.in_order(positions, self._slots(used), near)

    def of_row(self, span: Span, tree: Branches | None, near: Near | None) -> tuple[Tensor, Mask]:
        """Positions [T] of what one row is fed, and its mask; None = it may look at all slots."""
        if tree is not None:
            places = ragged_slots([span.start], [span.count])
            positions, mask = self.of_places([tree], places, span.end, near)
            return positions[0], mask
        positions = self._slots(span.end)[span.start :]
        if self._masks.can_skip and (span.count == 1 or not span.start):
            return positions, None
        return positions, self._masks.in_order(positions[None], self._slots(span.end), near)

    def of_places(
        self, trees: Sequence[Branches | None], places: Ints, used: int, near: Near | None = None
    ) -> tuple[Tensor, Mask]:
        """Positions [R, T] of what is fed to ``places``, and its mask over the first slots."""
        if not trees:
            positions = self.tensor(places)
            return positions, self._masks.make(positions, self._slots(used), near=near)
        positions, keys, seen = tree_masks(trees, places, used, self._device)
        return positions, self._masks.make(positions, keys[:, None, None], seen, near)

    def tensor(self, values: Any) -> Tensor:
        """On the model's device."""
        return torch.as_tensor(values, device=self._device)

    def _slots(self, num: int) -> Tensor:
        """[num] 0, 1, 2, ...: a view of one tensor that grows by doubling."""
        if num > self._num_numbers:
            self._num_numbers, self._numbers = 2 * num, torch.arange(2 * num, device=self._device)
        return self._numbers[:num]
