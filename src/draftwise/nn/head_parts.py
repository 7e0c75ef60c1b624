"""What heads of several kinds are made of: norms, layers' parts, positions, a part of the words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

if TYPE_CHECKING:
    from draftwise.nn.eagle import EagleConfig


def drafted_ids(offsets: Tensor | None) -> Tensor | None:
    """The target's token for each that can be drafted, of ``d2t``; None = all, as they are."""
    if offsets is None:
        return None
    found: Tensor = torch.arange(len(offsets), device=offsets.device) + offsets
    return found


def spread(drafted: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """[..., V] logits of those [..., len(ids)] of some tokens: minus infinity for the others."""
    if ids is None:
        return drafted
    full = drafted.new_full((*drafted.shape[:-1], vocab_size), float("-inf"))
    full[..., ids] = drafted
    return full


def one_rope(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings for one layer: where a model's kinds of layers have their own, those of its
    windows, since what comes next hangs on what is near."""
    kinds = {name: own for name, own in settings.items() if isinstance(own, Mapping)}
    first = next(iter(kinds.values()), settings)
    return dict(kinds.get("sliding_attention", first))


class Norm(nn.Module):
    """Root mean square norm that takes any precision, whatever its weight is kept in."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, states: Tensor) -> Tensor:
        weight = self.weight.to(states.dtype)
        return nn.functional.rms_norm(states, (len(weight),), weight, self._eps)


class Mlp(nn.Module):
    """The gated layer of Llama and Qwen."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(size, inner, bias=bias)
        self.up_proj = nn.Linear(size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, size, bias=bias)
        self._act = ACT2FN[config.act]

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.down_proj(self._act(self.gate_proj(hidden)) * self.up_proj(hidden))
        return found


def turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves as pairs (the layout of Llama and Qwen)."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


def rotary_table(config: EagleConfig, num: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [num, d], whatever kind of scaling the configuration asks for."""
    llama = LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rope_parameters=dict(config.rope),
    )
    rotary = LlamaRotaryEmbedding(llama).to(like.device)
    cos, sin = rotary(like, torch.arange(num, device=like.device)[None])
    return cos[0].to(like.dtype), sin[0].to(like.dtype)


class Angles:
    """cos and sin of positions, from a table that grows by doubling."""

    def __init__(self, config: EagleConfig) -> None:
        self._config = config
        self._table: tuple[Tensor, Tensor] | None = None

    def __call__(self, positions: Tensor, needed: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """[R, 1, T, d] each, of ``like``'s type and device; needed: above all positions."""
        if self._table is None or needed > len(self._table[0]):
            with torch.inference_mode(False):  # training may look at it later
                self._table = rotary_table(self._config, max(256, 2 * needed), like)
        cos, sin = self._table
        return cos[positions][:, None], sin[positions][:, None]
