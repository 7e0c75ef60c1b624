"""EAGLE heads: one decoder layer that drafts from the target's own hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from draftwise.nn.head_parts import Angles, Mlp, Norm, drafted_ids, spread, turned

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [R, H, T, d], k and v [R, G, T, d] of the T new tokens) -> [R, H, T, d]."""


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """The shape of a head.

    generation: 1 (EAGLE-1 and EAGLE-2, which differ in the tree alone) or 3. taps: the hidden
    states it reads, as ``CausalModel.tap`` numbers them. rope: as ``rope_parameters`` of
    ``transformers``. draft_vocab_size: tokens that it can draft; fewer than ``vocab_size`` need
    ``d2t``. qk_norm: Qwen3's norms of queries and keys. norm_before_residual: the residual is the
    normed hidden state (some heads of vLLM's ``speculators``).
    """

    generation: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    taps: tuple[int, ...]
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    max_positions: int = 2048
    eps: float = 1e-6
    act: str = "silu"
    fc_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_before_residual: bool = False


class EagleHead(nn.Module):
    """A head's weights and arithmetic; what it borrows of the target is no part of its state.

    Source: EAGLE (Li et al. 2024), section 3; EAGLE-3 (Li et al. 2025), section 3.1. Slot s of its
        text reads token s + 1 and the target's hidden states after token s, and its output g says
        what token s + 2 may be. EAGLE-1 mixes both by ``fc`` at every step, has no norm before its
        layer, and uses the target's ``lm_head``. EAGLE-3 reduces three layers' states by ``fc``,
        gives its attention both, normed, side by side, and takes g itself, before ``norm``, in
        place of the target's states where it drafts on.
    Differs: none. Names of parameters are those of the authors' EAGLE-3 checkpoints.
    State: the weights; a table of rotary angles. Cost: one layer and one ``lm_head`` a forward.
    """

    def __init__(
        self, config: EagleConfig, embed: nn.Module | None = None, lm_head: nn.Module | None = None
    ) -> None:
        """embed, lm_head: the target's, where the head has none of its own."""
        super().__init__()
        self.config = config
        size, is_third = config.hidden_size, config.generation == 3
        inputs = len(config.taps) * config.target_hidden_size if is_third else 2 * size
        self.fc = nn.Linear(inputs, size, bias=config.fc_bias)
        self.midlayer = _Layer(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, size) if embed is None else None
        self.norm = Norm(size, config.eps) if is_third else None
        is_own = lm_head is None
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False) if is_own else None
        if config.draft_vocab_size != config.vocab_size:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self._borrowed = (embed, lm_head)  # in a tuple, so that torch does not count them as ours
        self._angles = Angles(config)

    @property
    def title(self) -> str:
        """What it is, in a word."""
        return f"EAGLE-{self.config.generation}"

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's hidden states that it reads."""
        return self.config.taps

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return self.fc.weight.dtype

    @property
    def token_bytes(self) -> int:
        """Of keys and values."""
        return 2 * self.config.num_kv_heads * self.config.head_dim * self.dtype.itemsize

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., h] embeddings of target tokens."""
        found: Tensor = (self.embed_tokens or self._borrowed[0])(tokens)  # type: ignore[misc]
        return found

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [..., taps x D] as what ``forward`` takes: [..., h]."""
        if self.config.generation == 3:
            states = self.fc(states)
        return states

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, longest: int = 0
    ) -> Tensor:
        """g [R, T, h] of tokens [R, T] with fused or self-made states [R, T, h] beside them.

        longest: positions are below it; 0 = they are looked at, which waits for the device.
        """
        embedded = self.embed(tokens)
        cos, sin = self._angles(positions, longest or int(positions.max()) + 1, self.fc.weight)
        if self.config.generation == 3:
            return self.midlayer.third(embedded, hidden, cos, sin, attend)
        mixed = self.fc(torch.cat((embedded, hidden), dim=-1))
        return self.midlayer.first(mixed, cos, sin, attend)

    def draft_logits(self, states: Tensor) -> Tensor:
        """[..., draft_vocab_size] logits of states g."""
        if self.norm is not None:
            states = self.norm(states)
        found: Tensor = (self.lm_head or self._borrowed[1])(states)  # type: ignore[misc]
        return found

    def logits(self, states: Tensor) -> Tensor:
        """[..., vocab_size] logits: minus infinity for tokens that it cannot draft."""
        return spread(self.draft_logits(states), self.draft_ids, self.config.vocab_size)

    @property
    def draft_ids(self) -> Tensor | None:
        """[draft_vocab_size] the target's token for each drafted one; None = all, as they are."""
        return drafted_ids(getattr(self, "d2t", None))

    def set_vocabulary(self, ids: Tensor) -> None:
        """Say which tokens [draft_vocab_size] a new head drafts, in rising order."""
        self.get_buffer("d2t").copy_(ids - torch.arange(len(ids)))

    @property
    def borrowed(self) -> tuple[nn.Module | None, nn.Module | None]:
        """The target's embeddings and output layer, where the head has none of its own."""
        return self._borrowed

    @property
    def lent_rows(self) -> nn.Module | None:
        """The part of the target's output layer that it uses, where that is not the whole."""
        return self._borrowed[1] if self.draft_ids is not None else None

    @property
    def num_parameters(self) -> int:
        """Weights that a draft step multiplies with: an embedding is only looked up."""
        own = sum(p.numel() for name, p in self.named_parameters() if "embed_tokens" not in name)
        borrowed = self._borrowed[1]
        return own + sum(p.numel() for p in borrowed.parameters()) if borrowed else own


class _Layer(nn.Module):
    """The decoder layer of a head."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        size, is_third = config.hidden_size, config.generation == 3
        self.self_attn = _Attention(config, 2 * size if is_third else size)
        self.mlp = Mlp(config)
        self.post_attention_layernorm = Norm(size, config.eps)
        self.input_layernorm = Norm(size, config.eps) if is_third else None
        self.hidden_norm = Norm(size, config.eps) if is_third else None
        self._residual_is_normed = config.norm_before_residual

    def third(
        self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        """EAGLE-3: attention looks at both inputs, the residual is the hidden state."""
        assert self.input_layernorm is not None
        assert self.hidden_norm is not None
        normed = self.hidden_norm(hidden)
        both = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        residual = normed if self._residual_is_normed else hidden
        return self._rest(residual, self.self_attn(both, cos, sin, attend))

    def first(self, mixed: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """EAGLE-1: an ordinary layer without the norm before its attention."""
        return self._rest(mixed, self.self_attn(mixed, cos, sin, attend))

    def _rest(self, residual: Tensor, attended: Tensor) -> Tensor:
        hidden = residual + attended
        added: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return added


class _Attention(nn.Module):
    def __init__(self, config: EagleConfig, num_inputs: int) -> None:
        super().__init__()
        self._dim, bias = config.head_dim, config.attention_bias
        queries, keys = (n * self._dim for n in (config.num_heads, config.num_kv_heads))
        self.q_proj = nn.Linear(num_inputs, queries, bias=bias)
        self.k_proj = nn.Linear(num_inputs, keys, bias=bias)
        self.v_proj = nn.Linear(num_inputs, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = Norm(self._dim, config.eps) if config.qk_norm else None
        self.k_norm = Norm(self._dim, config.eps) if config.qk_norm else None

    def forward(self, inputs: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        rows, width, _ = inputs.shape
        q, k, v = (
            projection(inputs).view(rows, width, -1, self._dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        found = attend(turned(q, cos, sin), turned(k, cos, sin), v)
        output: Tensor = self.o_proj(found.transpose(1, 2).reshape(rows, width, -1))
        return output
