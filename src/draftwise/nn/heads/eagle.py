"""What heads of several kinds are made of: norms, layers' parts, positions, a part of the words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from draftwise.nn.cache import RaggedCache, Span
from draftwise.nn.trees import Branches, ragged_slots, stacked_ids, tree_masks


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


@torch.no_grad()
def lent_rows(layer: nn.Module, ids: Tensor) -> nn.Linear:
    """An output layer [V, D] for these tokens [n] alone: a copy [n, D] that is not trained."""
    if isinstance(layer, LentHead):  # it has no others
        return layer.rows
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    with torch.device("meta"):
        lent = nn.Linear(weight.shape[1], len(ids), bias=bias is not None)
    places = ids.to(weight.device)
    lent.weight = nn.Parameter(weight[places], requires_grad=False)
    if bias is not None:
        lent.bias = nn.Parameter(bias[places], requires_grad=False)
    return lent


class LentHead(nn.Module):
    """An output layer that can only draft some tokens, by the target's own rows for these.

    Source: the idea of FR-Spec (Zhao et al. 2025, arXiv 2502.14856): to draft over frequent tokens
        alone saves most of what the output layer costs; the target verifies over all of them.
    Shapes: states [..., D] to logits [..., V], minus infinity for the others.
    """

    def __init__(self, layer: nn.Module, ids: Tensor, vocab_size: int) -> None:
        """layer: the target's [V, D]. ids [n]: what can be drafted, in rising order."""
        super().__init__()
        self.rows, self._vocab_size = lent_rows(layer, ids), vocab_size
        self.ids: Tensor
        self.register_buffer("ids", ids.to(layer.get_parameter("weight").device))

    def forward(self, states: Tensor) -> Tensor:
        """Logits of all tokens."""
        return spread(self.rows(states), self.ids, self._vocab_size)
