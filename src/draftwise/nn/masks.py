"""What each token may look at, and where it is written: masks and slots of ragged rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.nn.attention import IN_ORDER, RAGGED, packed_mask
from draftwise.nn.cache import RaggedCache
from draftwise.nn.windows import Near, Windows, from_first
from draftwise.types import Ints

Mask = Tensor | dict[str, Tensor | None] | None
"""What a module takes: one for all layers, or one by kind of layer; None = none."""

_KINDS = {
    "full_attention": "full",
    "hybrid": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "hybrid_sliding": "sliding",
    "chunked_attention": "chunked",
    **dict.fromkeys(("linear_attention", "conv", "recurrent", "mamba", "moe", "mlp", "dummy"), ""),
}
"""Which mask a layer takes, by what configurations call it; "" = none."""


Fed = Sequence[int] | Tensor
"""Tokens of one row: as the host knows them, or [n] on the device."""


class Masks:
    """The masks that one model's attention layers expect."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        layers, self._dtype = _layer_kinds(config), dtype
        kinds = set(layers)
        wanted = {_KINDS.get(kind, kind) for kind in kinds}
        # a hybrid layer attends and keeps a state, which takes a mask of its own (Inkling)
        self._has_blind = "" in wanted or any("hybrid" in kind for kind in kinds)
        self._wanted = wanted - {""}
        self._window = int(getattr(config, "sliding_window", None) or 0)
        self._chunk = int(getattr(config, "attention_chunk_size", None) or 0)
        near = {
            index for index, kind in enumerate(layers) if _KINDS.get(kind) in ("sliding", "chunked")
        }
        sizes = (self._window * ("sliding" in wanted), self._chunk * ("chunked" in wanted))
        self.windows = Windows(frozenset(near), *sizes) if near and any(sizes) else None
        self.is_packable = config._attn_implementation == RAGGED  # until the self-check says no
        self._additive = config._attn_implementation == "eager"
        self._only = next(iter(self._wanted)) if len(kinds) == 1 and self._wanted else ""
        # sdpa without a mask is up to twice as fast
        self.can_skip = self._only == "full" and not self._additive
        # whether attention needs no mask for tokens in order
        self.knows_order = device.type == "cuda" and self.is_packable and self.can_skip

    def make(
        self,
        queries: Tensor,
        keys: Tensor,
        seen: Tensor | None = None,
        near: Near | None = None,
    ) -> Mask:
        """[R or 1, 1, T, used]: which slot each query may look at; by kind where layers differ.

        queries: [R or 1, T] and keys: broadcastable to [R, 1, T, used], positions. seen: [R, T,
        used] where they do not tell by themselves, as in trees. near: where layers that forget
        begin and end to read. None = no layer attends.
        """
        if not self._wanted:
            return None
        queries = queries[:, None, :, None]
        full = keys <= queries if seen is None else seen[:, None]
        made: dict[str, Tensor | None] = {"full": self._as_bias(full)}
        if self._has_blind:
            made[""] = None
        if "sliding" in self._wanted:
            seen_near = full & (keys > queries - self._window)
            made["sliding"] = self._as_bias(from_first(seen_near, *near) if near else seen_near)
        if "chunked" in self._wanted:
            seen_near = full & (keys // self._chunk == queries // self._chunk)
            made["chunked"] = self._as_bias(from_first(seen_near, *near) if near else seen_near)
        if self._only in made and self._only:
            return made[self._only]
        return {kind: made[name] for kind, name in _KINDS.items() if name in made}

    def in_order(self, queries: Tensor, keys: Tensor, near: Near | None = None) -> Mask:
        """As ``make``, for tokens that follow each other in the last of the slots [used]."""
        return IN_ORDER if self.knows_order else self.make(queries, keys, near=near)

    def pack(
        self,
        rows: Sequence[Mask],
        counts: Sequence[int],
        cache: RaggedCache,
    ) -> Mask:
        """The masks of single rows, each as ``make`` gives it, for rows read end to end."""
        if self._only:
            return packed_mask(counts, [r if isinstance(r, Tensor) else None for r in rows], cache)
        return {
            kind: packed_mask(
                counts, [r[kind] if isinstance(r, dict) else None for r in rows], cache
            )
            for kind, name in _KINDS.items()
            if name in self._wanted
        }

    def _as_bias(self, allowed: Tensor) -> Tensor:
        """Boolean for sdpa; what is added to the scores for eager attention."""
        if not self._additive:
            return allowed
        lowest = torch.finfo(self._dtype).min
        return torch.zeros_like(allowed, dtype=self._dtype).masked_fill_(~allowed, lowest)


def ragged_slots(starts: Sequence[int], counts: Sequence[int], width: int | None = None) -> Ints:
    """[R, T] the slots of rows that differ; without trees these are the positions, too.

    T is the largest count, or ``width``.

    Padding repeats its row's last token in that token's own place: it needs no room, changes
    nothing, and leaves no query without a key (NaN would stay in the cache).
    """
    last = np.maximum(np.array(counts) - 1, 0)
    steps = np.minimum(np.arange(width or max(counts)), last[:, None])
    slots: Ints = np.array(starts)[:, None] + steps
    return slots


def _layer_kinds(config: Any) -> list[str]:
    """The kind of each layer, from the configuration's list or, without it, ``sliding_window``."""
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if kinds:
        return list(kinds)
    kind = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    return [kind] * int(config.num_hidden_layers)


def stacked_ids(tokens: Sequence[Fed], width: int, device: torch.device) -> Tensor:
    """[R, width] tokens that the host or the device knows, each row's last repeated (0 of none)."""
    if not any(isinstance(row, Tensor) for row in tokens):
        return torch.tensor(
            [[*row, *[row[-1] if len(row) else 0] * (width - len(row))] for row in tokens],
            device=device,
        )
    rows = [torch.as_tensor(row, device=device) for row in tokens]
    return torch.stack(
        [
            torch.cat((row, row[-1:].expand(width - len(row)))) if len(row) < width else row
            for row in rows
        ]
    )


def packed_ids(tokens: Sequence[Fed], device: torch.device) -> Tensor:
    """[1, N] the tokens of all rows, end to end."""
    if not any(isinstance(row, Tensor) for row in tokens):
        return torch.tensor([[token for row in tokens for token in row]], device=device)
    return torch.cat([torch.as_tensor(row, device=device) for row in tokens])[None]
