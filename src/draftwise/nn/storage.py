"""Keys and values of one row, which grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

Block = tuple[Tensor, list[tuple[bool, int]]]
"""[n, H, slots, D] of n tensors in one piece, and which they are: whether values, and the layer."""


@dataclass(slots=True)
class Storage:
    """Keys and values [1, H, slots, D] of one row, by layer; made at a layer's first write.

    num_slots: tokens that each layer's tensors hold, once they are there. blocks: what all of them
    are parts of; empty before a row has grown. first: the position of slot 0.
    """

    num_slots: int = 0
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    first: int = 0

    @property
    def tensors(self) -> list[Tensor]:
        """All that is stored, in as few pieces as there are."""
        return [block for block, _ in self.blocks] or [*self.keys.values(), *self.values.values()]

    @property
    def num_bytes(self) -> int:
        """Bytes allocated so far."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put a layer's [1, H, n, D] at positions from ``start`` on; returns all up to there."""
        if layer not in self.keys:
            self.keys[layer] = allocate(keys, self.num_slots)
            self.values[layer] = allocate(values, self.num_slots)
            self.blocks = []
        first = start - self.first
        end = first + keys.shape[2]
        self.keys[layer][:, :, first:end] = keys
        self.values[layer][:, :, first:end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def grown(self, length: int, num_slots: int, first: int = 0) -> Storage:
        """Another one with the tokens from ``first`` on up to ``length``.

        Layers alike are copied at once.
        """
        new, kept = Storage(num_slots, first=first), slice(first - self.first, length - self.first)
        for block, places in self.blocks or self._joined():
            num, heads, _, size = block.shape
            # zeros: garbage behind a row's length must at least be finite
            rest = block.new_zeros((num, heads, num_slots - (length - first), size))
            block = torch.cat((block[:, :, kept], rest), dim=2)
            new.blocks.append((block, places))
            for index, (is_value, layer) in enumerate(places):
                (new.values if is_value else new.keys)[layer] = block[index : index + 1]
        return new

    def _joined(self) -> list[Block]:
        """The tensors of each shape, kind and device in one piece."""
        groups: dict[object, list[tuple[bool, int]]] = {}
        for is_value, tensors in ((False, self.keys), (True, self.values)):
            for layer, tensor in tensors.items():
                kind = (tensor.shape, tensor.dtype, tensor.device)
                groups.setdefault(kind, []).append((is_value, layer))
        return [
            (torch.cat([(self.values if v else self.keys)[layer] for v, layer in places]), places)
            for places in groups.values()
        ]


class Shelf(Protocol):
    """Where rows get storage of fixed sizes, and leave it for others (compiled forwards)."""

    def take(self, num_tokens: int) -> Storage:
        """Storage with room for so many tokens, empty or zeroed."""
        ...

    def give(self, storage: Storage) -> None:
        """This storage is free again."""
        ...


def allocate(like: Tensor, num_slots: int) -> Tensor:
    """[1, H, slots, D] zeros: garbage behind a row's length must at least be finite."""
    _, heads, _, size = like.shape
    return like.new_zeros((1, heads, num_slots, size))
