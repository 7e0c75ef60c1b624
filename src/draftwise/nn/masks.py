"""What each token may look at, and where it is written: masks and slots of ragged rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.types import Ints


class Masks:
    """The masks that one model's attention layers expect."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        self._patterns, self._dtype = _attention_patterns(config), dtype
        self._window = int(getattr(config, "sliding_window", None) or 0)
        self._additive = config._attn_implementation == "eager"
        # sdpa without a mask is up to twice as fast
        self.can_skip = self._patterns == {"full_attention"} and not self._additive

    def make(
        self, queries: Tensor, keys: Tensor, seen: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """[R or 1, 1, T, used]: which slot each query may look at.

        queries: [R or 1, T] and keys: broadcastable to [R, 1, T, used], positions. seen: [R, T,
        used] where they do not tell by themselves, as in trees.
        """
        queries = queries[:, None, :, None]
        full = keys <= queries if seen is None else seen[:, None]
        if self._patterns == {"full_attention"}:
            return self._as_bias(full)
        sliding = self._as_bias(full & (keys > queries - self._window))
        if self._patterns == {"sliding_attention"}:
            return sliding
        return {"full_attention": self._as_bias(full), "sliding_attention": sliding}

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


def _attention_patterns(config: Any) -> set[str]:
    """The kinds of attention layers, from ``layer_types`` or, without it, ``sliding_window``."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds)
    return {"sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"}
