"""Attention of ragged rows: the masks and positions of texts and token trees, and the kernel."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftwise.nn.cache import RaggedCache, RowSpan
from draftwise.types import Bools, Draft, Ints

RAGGED = "sdpa_ragged"  # the ``attn_implementation`` registered by ``attend_raggedly``


class PackedMask(Tensor):
    """Placeholder for the mask of concatenated rows: what each row attends to.

    counts: tokens of each row. masks: [1, 1, count, used] by row; None = all slots of the row.
    cache: its ``views`` hold the rows' keys and values. The placeholder has the shape [1, 1, 1, 1],
    which passes transformers' checks.
    """

    counts: Sequence[int]
    masks: Sequence[Tensor | None]
    cache: RaggedCache


class InOrder(Tensor):
    """Placeholder for the causal mask of the last tokens in order: a [1, 1, 1, 1] tensor.

    With this order GPU kernels support grouped heads, which they do not with an explicit mask.
    """


IN_ORDER: InOrder = torch.ones((1, 1, 1, 1), dtype=torch.bool).as_subclass(InOrder)


def packed_mask(
    counts: Sequence[int], masks: Sequence[Tensor | None], cache: RaggedCache
) -> PackedMask:
    made: PackedMask = torch.ones((1, 1, 1, 1), dtype=torch.bool).as_subclass(PackedMask)
    made.counts, made.masks, made.cache = counts, masks, cache
    return made


def ragged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' ``sdpa`` attention; with a ``PackedMask`` each row attends to its own storage.

    query: [B, H, T, D]; key: [B, G, S, D] and value: [B, G, S, E] with H a multiple of G; packed:
    [1, H, N, D], rows concatenated. Returns [B, T, H, E]. Unlike in ``sdpa``, keys of grouped heads
    are not repeated under a mask, which would copy the cache in every layer, except on CUDA.
    """
    if not isinstance(attention_mask, PackedMask):
        return _attention(module, query, key, value, attention_mask, **more), None
    queries = torch.split(query, list(attention_mask.counts), dim=2)
    views = attention_mask.cache.views[module.layer_idx]
    rows = zip(queries, views, attention_mask.masks, strict=True)
    return torch.cat([_attention(module, q, *kv, mask, **more) for q, kv, mask in rows], 1), None


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
) -> Tensor:
    has_extras = more.get("dropout") or more.get("softcap")
    is_simple = not has_extras and more.get("position_bias") is None
    is_ordered = isinstance(mask, InOrder)
    if is_ordered:
        num, used = query.shape[2], key.shape[2]
        if is_simple:
            # its module imports torch.compile, which takes a second; the self-check of a load,
            # whose forwards are not timed, comes here first
            from torch.nn.attention.bias import causal_lower_right

            mask = causal_lower_right(num, used)
        else:
            mask = query.new_ones((1, 1, num, used), dtype=torch.bool).tril(used - num)
    takes_groups = is_simple and (query.device.type == "cpu" or mask is None or is_ordered)
    if not takes_groups or (mask is None and query.shape[2] > 1):
        found: Tensor = sdpa_attention_forward(module, query, key, value, mask, **more)[0]
        return found
    rows, heads, width, size = query.shape
    shares = heads != key.shape[1]
    folds = shares and width == 1 and query.device.type == "cpu" and query.dtype != torch.float32
    if folds:  # a group's heads become tokens of one head, so the kernel reads their keys once
        query, shares = query.reshape(rows, key.shape[1], -1, size), False
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=more.get("scaling"), enable_gqa=shares
    )
    if folds:
        output = output.reshape(rows, heads, width, -1)  # values may be narrower
    return output.transpose(1, 2)


def attend_raggedly(module: Any) -> None:
    """Switch a module loaded with ``sdpa`` to ``ragged_attention``."""
    # transformers' code of models, which takes a second to import, is loaded with the module
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(RAGGED, ragged_attention)
    AttentionMaskInterface.register(RAGGED, sdpa_mask)
    module.set_attn_implementation(RAGGED)


@dataclass(frozen=True, slots=True)
class Branches:
    """A token tree in the slots from ``base`` on, fed at once or level by level; T tokens are fed.

    positions: [E - base] position of each slot up to the last fed one, E - 1. seen: [T, E - base]
    the slots that each fed token attends to, itself included; all tokens attend to the text.
    """

    base: int
    positions: Ints
    seen: Bools | Tensor

    @property
    def end(self) -> int:
        return self.base + len(self.positions)


def branches(parents: Sequence[int], base: int) -> Branches:
    """A tree after ``base`` tokens of text. parents: of each token; -1 = the text.

    >>> branches([-1, 0, 0], base=4).positions.tolist()
    [4, 5, 5]
    >>> branches([-1, 0, 0], base=4).seen.astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return Branches(base, base + seen.sum(axis=1) - 1, seen)


def draft_branches(draft: Draft, base: int) -> Branches | None:
    """A draft fed together with the text's last token, after ``base`` others; None for a chain."""
    if draft.parents is None:
        return None
    parents = [-1, *(draft.parents + 1).tolist()]
    is_chain = all(parent == node - 1 for node, parent in enumerate(parents))
    return None if is_chain else branches(parents, base)


def pruned(
    tokens: Ints,
    parents: Ints,
    ends: Container[int],
    num_allowed: Callable[[Sequence[int]], int] = len,
) -> tuple[Ints, Ints]:
    """Prune descendants of end tokens, and tokens of probability 0 with their descendants; returns
    tokens and parents. num_allowed: number of a path's tokens before the first of probability 0.

    >>> pruned(np.array([5, 2, 7, 8]), np.array([-1, -1, 1, 0]), {2})[1].tolist()
    [-1, -1, 0]
    """
    place, paths = {-1: -1}, dict[int, list[int]]({-1: []})
    for node, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        if parent in place and (parent < 0 or int(tokens[parent]) not in ends):
            paths[node] = [*paths[parent], token]
            if num_allowed(paths[node]) == len(paths[node]):
                place[node] = len(place) - 1
    kept = list(place)[1:]
    above = np.array([place[parent] for parent in parents[kept].tolist()], dtype=np.int64)
    return tokens[kept], above


def tree_masks(
    trees: Sequence[Branches | None], slots: Ints, used: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions [R, T] of the queries and [R, used] of the keys, and seen [R, T, used].

    slots: [R, T] where each fed token is written (padding repeats a row's last).
    """
    queries = slots.copy()
    places = torch.arange(used, device=device)
    keys = places.repeat(len(slots), 1)
    seen = places <= torch.from_numpy(slots).to(device)[:, :, None]
    for row, tree in enumerate(trees):
        if tree is not None:
            fed = slots[row] - tree.end  # negative
            queries[row] = tree.positions[fed]
            keys[row, tree.base : tree.end] = torch.from_numpy(tree.positions).to(device)
            index: Any = fed + len(tree.seen)
            if isinstance(tree.seen, Tensor):
                index = torch.from_numpy(index).to(device)
            seen[row, :, tree.base : tree.end] = torch.as_tensor(tree.seen[index], device=device)
    return torch.from_numpy(queries).to(device), keys, seen


Mask = Tensor | dict[str, Tensor | None] | None
"""One mask for all layers, or one by kind of layer; None = no mask."""

_KINDS = {
    "full_attention": "full",
    "hybrid": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "hybrid_sliding": "sliding",
    "chunked_attention": "chunked",
    **dict.fromkeys(("linear_attention", "conv", "recurrent", "mamba", "moe", "mlp", "dummy"), ""),
}
"""The mask of each kind of layer; "" = none."""
Fed = Sequence[int] | Tensor  # tokens of one row, on the host or [n] on the device
Trees = Sequence[Branches | None]  # [R] tree of each row, None = a chain; empty = all are chains


class Masks:
    """The masks that one model's attention layers expect."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        kinds, self._dtype = set(_layer_kinds(config)), dtype
        wanted = {_KINDS.get(kind, kind) for kind in kinds}
        # a hybrid layer attends and keeps a state, which takes a separate mask (Inkling)
        self._has_blind = "" in wanted or any("hybrid" in kind for kind in kinds)
        self._wanted = wanted - {""}
        self._window = int(getattr(config, "sliding_window", None) or 0)
        self._chunk = int(getattr(config, "attention_chunk_size", None) or 0)
        self.is_packable = config._attn_implementation == RAGGED  # unless the self-check fails
        self._additive = config._attn_implementation == "eager"
        self._only = next(iter(self._wanted)) if len(kinds) == 1 and self._wanted else ""
        # sdpa without a mask is up to twice as fast
        self.can_skip = self._only == "full" and not self._additive
        # whether attention needs no mask for tokens in order
        self.knows_order = device.type == "cuda" and self.is_packable and self.can_skip

    def make(self, queries: Tensor, keys: Tensor, seen: Tensor | None = None) -> Mask:
        """[R or 1, 1, T, used] masks, by kind if layers differ; None = no layer attends.

        queries: [R or 1, T] and keys: broadcastable to [R, 1, T, used], positions. seen: [R, T,
        used] of trees, which positions do not determine.
        """
        if not self._wanted:
            return None
        queries = queries[:, None, :, None]
        full = keys <= queries if seen is None else seen[:, None]
        made: dict[str, Tensor | None] = {"full": self._as_bias(full)}
        if self._has_blind:
            made[""] = None
        for kind in self._wanted & {"sliding", "chunked"}:
            if kind == "sliding":
                is_inside = keys > queries - self._window
            else:
                is_inside = keys // self._chunk == queries // self._chunk
            made[kind] = self._as_bias(full & is_inside)
        if self._only in made and self._only:
            return made[self._only]
        return {kind: made[name] for kind, name in _KINDS.items() if name in made}

    def in_order(self, queries: Tensor, keys: Tensor) -> Mask:
        """The same as ``make`` for consecutive tokens in the last of the slots [used]."""
        return IN_ORDER if self.knows_order else self.make(queries, keys)

    def pack(self, rows: Sequence[Mask], counts: Sequence[int], cache: RaggedCache) -> Mask:
        """Combine the masks of single rows (``make``) for a packed forward."""
        if self._only:
            return packed_mask(counts, [r if isinstance(r, Tensor) else None for r in rows], cache)
        masks = [row if isinstance(row, dict) else {} for row in rows]
        return {
            kind: packed_mask(counts, [mask.get(kind) for mask in masks], cache)
            for kind, name in _KINDS.items()
            if name in self._wanted
        }

    def _as_bias(self, allowed: Tensor) -> Tensor:
        """Boolean for sdpa, additive for eager attention."""
        if not self._additive:
            return allowed
        lowest = torch.finfo(self._dtype).min
        return torch.zeros_like(allowed, dtype=self._dtype).masked_fill_(~allowed, lowest)


def ragged_slots(starts: Sequence[int], counts: Sequence[int]) -> Ints:
    """[R, T] slots, padded to the largest count by repeating a row's last slot.

    A padding query without keys would write NaN into the cache.
    """
    last = np.maximum(np.array(counts) - 1, 0)
    steps = np.minimum(np.arange(max(counts)), last[:, None])
    slots: Ints = np.array(starts)[:, None] + steps
    return slots


class AttentionInputs:
    """Builds the positions and masks of forwards."""

    def __init__(self, masks: Masks, device: torch.device) -> None:
        self._masks, self._device = masks, device
        self._numbers, self._num_numbers = torch.arange(0, device=device), 0

    def of_rows(self, spans: Sequence[RowSpan], trees: Trees) -> tuple[Tensor, Mask]:
        """Positions [R, T] of padded rows, and their mask; None = they attend to all slots.

        trees: [R], or () where all rows are chains.
        """
        counts = [span.count for span in spans]
        used, width = max([span.end for span in spans]), max(counts)
        is_even = min([span.start for span in spans]) == used - width and min(counts) == width
        if is_even and not any(trees):
            slots = self._slots(used)
            positions = slots[None, used - width :].expand(len(counts), width)
            # one token attends to all slots; a text from its start is plain causal attention
            if self._masks.can_skip and (width == 1 or width == used):
                return positions, None
            return positions, self._masks.in_order(positions, slots)
        places = ragged_slots([span.start for span in spans], counts)
        if not any(trees):
            positions = torch.from_numpy(places).to(self._device)
            return positions, self._masks.make(positions, self._slots(used))
        positions, keys, seen = tree_masks(trees, places, used, self._device)
        return positions, self._masks.make(positions, keys[:, None, None], seen)

    def _slots(self, num: int) -> Tensor:
        """[num] 0, 1, 2, ...: a view of a tensor that grows by doubling."""
        if num > self._num_numbers:
            self._num_numbers, self._numbers = 2 * num, torch.arange(2 * num, device=self._device)
        return self._numbers[:num]


def _layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if kinds:
        return list(kinds)
    kind = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    return [kind] * int(config.num_hidden_layers)


def stacked_ids(tokens: Sequence[Fed], width: int, device: torch.device) -> Tensor:
    """[R, width] tokens; shorter rows repeat their last token (0 if there is none)."""
    if not any(isinstance(row, Tensor) for row in tokens):
        return torch.tensor(
            [[*row, *[row[-1] if len(row) else 0] * (width - len(row))] for row in tokens],
            device=device,
        )
    return stacked_rows([torch.as_tensor(row, device=device) for row in tokens], width)


def stacked_rows(rows: Sequence[Tensor], width: int) -> Tensor:
    """Stack rows [n, ...] to [R, width, ...]; shorter ones repeat their last entry."""
    if len(rows) == 1 and len(rows[0]) == width:
        return rows[0][None]
    padding = (row[-1:].expand(width - len(row), *row.shape[1:]) for row in rows)
    return torch.stack([torch.cat(pair) for pair in zip(rows, padding, strict=True)])


def packed_ids(tokens: Sequence[Fed], device: torch.device) -> Tensor:
    """[1, N] the tokens of all rows, concatenated."""
    if not any(isinstance(row, Tensor) for row in tokens):
        return torch.tensor([[token for row in tokens for token in row]], device=device)
    return torch.cat([torch.as_tensor(row, device=device) for row in tokens])[None]
