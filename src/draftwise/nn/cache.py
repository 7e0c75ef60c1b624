"""The ragged KV cache: preallocated storage, one length a row, cropping = changing a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one forward writes, and how far it reads.

    rows: [R] storage rows, or None for all of them in order. slots: [R, T] where each token goes,
    or None if every row writes T = ``width`` tokens from slot ``start`` on. used: slots read.
    """

    rows: Tensor | None
    slots: Tensor | None
    start: int
    width: int
    used: int


class RaggedCache(Cache):  # type: ignore[misc]
    """Keys and values of B rows with B different lengths, allocated once.

    ``lengths`` [B] says how many tokens of each row are valid; whatever lies behind is garbage that
    masks hide and later writes overwrite, so a rejected draft is removed by lowering a number.
    Storage is one [B, H, slots, D] pair a layer in ``keys`` and ``values``, made at the layer's
    first write (its dtype, heads and head size are only known then). ``docs/kv_cache.md`` draws it.
    num_slots: of the storage, where that is to be larger than the capacity.
    """

    def __init__(self, num_rows: int, capacity: int, num_slots: int | None = None) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self.num_slots = capacity if num_slots is None else num_slots
        self.lengths = [0] * num_rows
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._placement: Placement | None = None

    def place(self, placement: Placement) -> None:
        """Say where the coming forward writes; raises ValueError where it does not fit."""
        if placement.used > self.capacity:
            raise ValueError(
                f"the KV cache holds {self.capacity} tokens a row, and {placement.used} are needed"
            )
        self._placement = placement

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [R, H, T, D] of one layer; return all that the placement's rows may look at."""
        if self._placement is None:
            raise RuntimeError("place() comes before a forward through this cache")
        if layer_idx == len(self.keys):
            self.keys.append(self._allocate(key_states))
            self.values.append(self._allocate(value_states))
        place = self._placement
        return (
            _write_and_read(self.keys[layer_idx], key_states, place),
            _write_and_read(self.values[layer_idx], value_states, place),
        )

    def take(self, keys: list[Tensor], values: list[Tensor]) -> None:
        """Write into storage that a cache of this size had, emptied: no NaN may stay in it."""
        self.keys, self.values = keys, values
        with torch.inference_mode():  # where it was made
            for storage in (*keys, *values):
                storage.zero_()

    def keep_path(self, row: int, base: int, path: Sequence[int]) -> None:
        """Of a tree fed at slots ``base``, ``base + 1``, ... keep one path, and cut the rest off.

        path: increasing offsets from ``base``. Keys know their position, which on a path is the
        slot they move to, so moving them is all.
        """
        self.lengths[row] = base + len(path)
        if list(path) == list(range(len(path))):
            return
        for storage in (*self.keys, *self.values):
            index = torch.as_tensor(path, device=storage.device) + base
            storage[row, :, base : base + len(path)] = storage[row, :, index]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, in this order: one copy, when a request has ended."""
        self.lengths = [self.lengths[row] for row in rows]
        if self.keys:
            index = torch.as_tensor(list(rows), device=self.keys[0].device)
            self.keys = [k.index_select(0, index) for k in self.keys]
            self.values = [v.index_select(0, index) for v in self.values]

    @property
    def num_bytes(self) -> int:
        """Bytes of the storage allocated so far."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The first slot of the coming write (the library asks; our masks do not)."""
        place = self._placement
        return 0 if place is None else place.start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """As ``get_seq_length``."""
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Slots that attention will see, and the first of them."""
        place = self._placement
        return (query_length if place is None else place.used), 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Tokens that a row can hold."""
        return self.capacity

    get_max_length = get_max_cache_shape  # its name since transformers 5.20

    def _allocate(self, states: Tensor) -> Tensor:
        _, heads, _, size = states.shape
        return states.new_zeros((len(self.lengths), heads, self.num_slots, size))


def _write_and_read(storage: Tensor, states: Tensor, place: Placement) -> Tensor:
    """Store [R, H, T, D] at the placement and return [R, H, used, D] (a view for all rows)."""
    if place.rows is None and place.slots is None:
        storage[:, :, place.start : place.start + place.width] = states
        return storage[:, :, : place.used]
    device = storage.device
    rows = torch.arange(len(storage), device=device) if place.rows is None else place.rows
    slots = place.slots
    if slots is None:
        slots = torch.arange(place.start, place.start + place.width, device=device)[None]
    storage[rows[:, None], :, slots] = states.transpose(1, 2)
    return storage[:, :, : place.used] if place.rows is None else storage[rows, :, : place.used]
