"""Attention of grouped heads without copies, where a mask is given: as drafts need it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "sdpa_gqa"
"""The name under which ``transformers`` knows it: ``attn_implementation``."""


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:
    """As the library's ``sdpa``, which repeats keys and values for every query head of a group.

    query: [B, H, T, D]; key, value: [B, G, S, D] with H a multiple of G. The repetition copies the
    whole cache in every layer whenever there is a mask and more than one token.
    """
    is_simple = not any(more.get(name) for name in ("dropout", "softcap")) and (
        more.get("position_bias") is None
    )
    if attention_mask is None or query.shape[2] == 1 or not is_simple:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return found, None
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=more.get("scaling"), enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


def share_heads(module: Any) -> None:
    """Let a module that was loaded for ``sdpa`` attend without copies, where that is faster.

    Only on a CPU: CUDA's kernels for masks do not take groups of heads.
    """
    config = module.config.get_text_config()
    groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if module.device.type == "cpu" and groups < config.num_attention_heads:
        module.set_attn_implementation(GROUPED)


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
