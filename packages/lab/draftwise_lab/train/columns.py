"""A KV cache and an attention for one token of each of many rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import sdpa_mask

from draftwise.nn.attention import ragged_attention

COLUMNS = 32  # tokens by which the storage grows
NAME = "columns"  # the ``attn_implementation`` that is registered with ``transformers``


class Columns(DynamicLayer):  # type: ignore[misc]
    """Keys [R, G, D, S] and values [R, G, S, D], with room for further tokens.

    ``DynamicLayer`` copies everything at each token. Keys are transposed since products of few
    queries with them take a third of the time on CPUs; the room beyond the last token is masked.
    """

    keys: Tensor
    values: Tensor
    is_initialized: bool

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def get_seq_length(self) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._room(self._length + query_length), 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep [R, G, T, D] of T tokens; return all of the storage in this shape."""
        start, end = self._length, self._length + key_states.shape[2]
        room = self._room(end)
        if not self.is_initialized or self.values.shape[2] < room:
            rows, heads, _, size = key_states.shape
            keys = key_states.new_zeros((rows, heads, size, room))
            values = value_states.new_zeros((rows, heads, room, value_states.shape[3]))
            if self.is_initialized:
                keys[..., :start] = self.keys[..., :start]
                values[:, :, :start] = self.values[:, :, :start]
            self.keys, self.values, self.is_initialized = keys, values, True
        self.keys[..., start:end] = key_states.transpose(2, 3)
        self.values[:, :, start:end] = value_states
        self._length = end
        return self.keys.transpose(2, 3), self.values

    def shift(self, pads: Tensor) -> None:
        """Turn one row of S tokens into R, the first of which are ``pads`` [R] further right.

        Masks of windows count columns, so pads must come before a text and not inside it.
        """
        places = torch.arange(self._length, device=pads.device) - pads[:, None]
        places = places.clamp(min=0)
        self.keys = self.keys[0][..., places].movedim(2, 0)
        self.values = self.values[0][:, places].movedim(1, 0)

    def _room(self, length: int) -> int:
        return -(-length // COLUMNS) * COLUMNS


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of queries [R, H, T, D] to keys and values [R, G, S, D], with H a multiple of G.

    For one query of each row these are two batched products over the grouped heads, which take a
    quarter of the time of torch's kernel for CPUs.
    """
    rows, heads, num, size = query.shape
    is_simple = all(more.get(name) is None for name in ("softcap", "position_bias", "s_aux"))
    if num > 1 or attention_mask is None or not is_simple:
        key = key.contiguous()
        return ragged_attention(module, query, key, value, attention_mask, scaling=scaling, **more)
    query = query.view(rows, key.shape[1], -1, size) * (scaling or size**-0.5)
    scores = (query @ key.transpose(2, 3)).float()
    weights = scores.masked_fill(~attention_mask, -torch.inf).softmax(-1).to(value.dtype)
    found = (weights @ value).view(rows, heads, 1, -1)
    return found.transpose(1, 2), None


@contextmanager
def columnwise(module: Any) -> Iterator[None]:
    """Let the module attend by ``attend`` within this context."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    before = module.config._attn_implementation
    if before != "eager":
        module.set_attn_implementation(NAME)
    try:
        yield
    finally:
        module.set_attn_implementation(before)
