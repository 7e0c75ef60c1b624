"""A head of one layer on a ragged KV cache: tokens and states in, the head's states out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftwise.nn.cache import RaggedCache, Span
from draftwise.nn.eagle import Attend
from draftwise.nn.masks import ragged_slots, stacked_ids
from draftwise.nn.trees import Branches, tree_masks


class StateHead(Protocol):
    """A head that reads tokens beside the target's states, or beside those that it made itself.

    taps: which states. token_bytes: of its cache. fuse: the target's states [..., taps x D] as
    forward takes them. logits: [..., V] of its states.
    """

    @property
    def title(self) -> str: ...
    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def num_parameters(self) -> int: ...
    def fuse(self, states: Tensor) -> Tensor: ...
    def logits(self, states: Tensor) -> Tensor: ...
    def __call__(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, longest: int = 0
    ) -> Tensor: ...


def read(
    head: StateHead,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Sequence[int] | Tensor],
    hidden: Sequence[Tensor],
    trees: Sequence[Branches | None] = (),
) -> list[Tensor]:
    """Feed each of R rows its next slots and advance the cache's lengths; R states g [num_fed, h].

    tokens, hidden: [num_fed] and [num_fed, h] of each row, at least one slot. trees: [R], how they
    branch, None = each follows the one before; nothing = all do.
    Raises ValueError if a row does not fit into the cache.
    """
    spans = [Span(r, cache.lengths[r], len(fed)) for r, fed in zip(rows, tokens, strict=True)]
    device = hidden[0].device
    positions, seen = _look(spans, trees, device)
    cache.place(spans)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.update(k, v, 0)
        return scaled_dot_product_attention(
            q, keys, values, attn_mask=seen, enable_gqa=q.shape[1] != keys.shape[1]
        )

    width = max(span.count for span in spans)
    ids = stacked_ids(tokens, width, device)
    longest = max(span.end for span in spans)
    states = head(ids, _stacked(hidden, width), positions, attend, longest)
    for span in spans:
        cache.lengths[span.row] = span.end
    return [states[index, : span.count] for index, span in enumerate(spans)]


def _look(
    spans: Sequence[Span], trees: Sequence[Branches | None], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Positions [R or 1, T] of the slots, and what they see [R, 1, T, used].

    One slot for each of rows of one length sees all of the cache and needs no mask.
    """
    counts = [span.count for span in spans]
    width, used = max(counts), max(span.end for span in spans)
    if not any(trees) and all(span.end == used and span.count == width for span in spans):
        positions = torch.arange(used - width, used, device=device)[None]
        seen = None
        if width > 1:
            seen = torch.arange(used, device=device) <= positions[:, None, :, None]
        return positions, seen
    slots = ragged_slots([span.start for span in spans], counts)
    queries, _, seen = tree_masks(trees or [None] * len(spans), slots, used, device)
    return queries, seen[:, None]


def _stacked(hidden: Sequence[Tensor], width: int) -> Tensor:
    """[R, T, h]; shorter rows repeat their last state, which is written in its own place again."""
    if len(hidden) == 1:
        return hidden[0][None]
    return torch.stack(
        [torch.cat((h, h[-1:].expand(width - len(h), -1))) if len(h) < width else h for h in hidden]
    )
