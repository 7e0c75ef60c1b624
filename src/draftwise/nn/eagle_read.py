"""An EAGLE head on a ragged KV cache: tokens and hidden states in, the head's states out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftwise.nn.cache import Placement, RaggedCache
from draftwise.nn.eagle import EagleHead
from draftwise.nn.masks import ragged_slots
from draftwise.nn.trees import Branches, tree_masks


def read(
    head: EagleHead,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Sequence[int]],
    hidden: Sequence[Tensor],
    trees: Sequence[Branches | None] = (),
) -> list[Tensor]:
    """Feed each of R rows its next slots and advance the cache's lengths; R states g [num_fed, h].

    tokens, hidden: [num_fed] and [num_fed, h] of each row, at least one slot. trees: [R], how they
    branch, None = each follows the one before; nothing = all do.
    Raises ValueError if a row does not fit into the cache.
    """
    starts = [cache.lengths[row] for row in rows]
    counts = [len(fed) for fed in tokens]
    every = list(rows) == list(range(len(cache.lengths)))
    device = hidden[0].device
    where = None if every else torch.tensor(rows, device=device)
    placement, positions, seen = _lay_out(starts, counts, trees, where, device)
    cache.place(placement)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.update(k, v, 0)
        return scaled_dot_product_attention(
            q, keys, values, attn_mask=seen, enable_gqa=q.shape[1] != keys.shape[1]
        )

    ids = torch.tensor([_padded(fed, placement.width) for fed in tokens], device=device)
    states = head(ids, _stacked(hidden, placement.width), positions, attend)
    for row, start, count in zip(rows, starts, counts, strict=True):
        cache.lengths[row] = start + count
    return [states[index, :count] for index, count in enumerate(counts)]


def _lay_out(
    starts: Sequence[int],
    counts: Sequence[int],
    trees: Sequence[Branches | None],
    rows: Tensor | None,
    device: torch.device,
) -> tuple[Placement, Tensor, Tensor | None]:
    """Where the slots are written, their positions [R or 1, T], and what they see [R, 1, T, used].

    One slot for each of rows of one length sees all of the cache and needs no mask.
    """
    width, used = max(counts), max(s + c for s, c in zip(starts, counts, strict=True))
    if not any(trees) and min(starts) == max(starts) and min(counts) == width:
        positions = torch.arange(used - width, used, device=device)[None]
        seen = None
        if width > 1:
            seen = torch.arange(used, device=device) <= positions[:, None, :, None]
        return Placement(rows, None, used - width, width, used), positions, seen
    slots = ragged_slots(starts, counts)
    queries, _, visible = tree_masks(trees or [None] * len(starts), slots, used)
    placement = Placement(rows, torch.as_tensor(slots, device=device), used - width, width, used)
    seen = torch.as_tensor(visible, device=device)[:, None]
    return placement, torch.as_tensor(queries, device=device), seen


def _padded(tokens: Sequence[int], width: int) -> list[int]:
    return [*tokens, *[tokens[-1]] * (width - len(tokens))]


def _stacked(hidden: Sequence[Tensor], width: int) -> Tensor:
    """[R, T, h]; shorter rows repeat their last state, which is written in its own place again."""
    if len(hidden) == 1:
        return hidden[0][None]
    return torch.stack(
        [torch.cat((h, h[-1:].expand(width - len(h), -1))) if len(h) < width else h for h in hidden]
    )
