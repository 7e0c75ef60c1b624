"""Attention over ragged batches: storage per row, grouped-query heads without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from draftwise.nn.cache import RaggedCache

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
