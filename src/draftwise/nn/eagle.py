"""EAGLE heads: modules, and forwards over the ragged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, rotate_half

from draftwise.nn.attention import Branches, ragged_slots, stacked_ids, stacked_rows, tree_masks
from draftwise.nn.cache import RaggedCache, RowSpan


class Norm(nn.RMSNorm):
    """RMSNorm of states whose precision may differ from the weight's."""

    def forward(self, states: Tensor) -> Tensor:
        weight = self.weight.to(states.dtype)
        return nn.functional.rms_norm(states, weight.shape, weight, self.eps)


def turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions, with halves as pairs (the layout of Llama and Qwen)."""
    found: Tensor = states * cos + rotate_half(states) * sin
    return found


class Angles:
    """cos and sin of positions, from a table that grows by doubling."""

    def __init__(self, config: EagleConfig) -> None:
        self._config = config
        self._table: tuple[Tensor, ...] | None = None

    def __call__(self, positions: Tensor, needed: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """[R, 1, T, d] each, with ``like``'s dtype and device; needed: exceeds all positions."""
        table = self._table
        if table is None or needed > len(table[0]) or table[0].dtype != like.dtype:
            with torch.inference_mode(False):  # training may use the table later
                rotary = LlamaRotaryEmbedding(self._config).to(like.device)
                every = torch.arange(max(256, 2 * needed), device=like.device)
                table = tuple(one[0].to(like.dtype) for one in rotary(like, every[None]))
            self._table = table
        cos, sin = table
        return cos[positions][:, None], sin[positions][:, None]


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [R, H, T, d], k and v [R, G, T, d] of the T new tokens) -> [R, H, T, d]."""


class EagleConfig(LlamaConfig):  # type: ignore[misc]
    """The shape of a head, and of its layer.

    generation: 1 (EAGLE-1 and EAGLE-2, which differ only in the tree) or 3. taps: the hidden states
    it reads, numbered as by ``CausalModel.tap``. draft_vocab_size: tokens that it can draft, 0 =
    all; fewer need ``d2t``. target_hidden_size: 0 = the head's. qk_norm: Qwen3's norms of queries
    and keys. norm_before_residual: the residual is the normed hidden state.
    """

    generation: int = 3
    taps: tuple[int, ...] = ()
    draft_vocab_size: int = 0
    target_hidden_size: int = 0
    fc_bias: bool = False
    qk_norm: bool = False
    norm_before_residual: bool = False

    def __post_init__(self, **more: Any) -> None:
        self.draft_vocab_size = self.draft_vocab_size or self.vocab_size
        self.target_hidden_size = self.target_hidden_size or self.hidden_size
        super().__post_init__(**more)


class EagleHead(nn.Module):
    """A head's weights and arithmetic; parameters are named as in the authors' EAGLE-3 checkpoints.

    Source: EAGLE (Li et al. 2024), section 3; EAGLE-3 (Li et al. 2025), section 3.1. Slot s reads
    token s + 1 and the target's hidden states after token s; its output g predicts token s + 2.
    EAGLE-1 mixes both by ``fc`` at every step, has no norm before its layer, and uses the target's
    ``lm_head``. EAGLE-3 reduces three layers' states by ``fc``, feeds its attention both, normed
    and concatenated, and continues drafts from g (before ``norm``) instead of the target's states.

    embed, lm_head: the target's modules, borrowed outside the state dict; None = the head's own.
    Its precision may be lower than the target's: what it takes is cast, and so are its logits if
    ``target_dtype`` is set.
    """

    def __init__(
        self, config: EagleConfig, embed: nn.Module | None = None, lm_head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.config, size, is_third = config, config.hidden_size, config.generation == 3
        self.title = f"EAGLE-{config.generation}"
        inputs = len(config.taps) * config.target_hidden_size if is_third else 2 * size
        self.fc = nn.Linear(inputs, size, bias=config.fc_bias)
        self.midlayer = _Layer(config)
        self.norm = Norm(size, config.rms_norm_eps) if is_third else None
        num = config.draft_vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, size) if embed is None else None
        self.lm_head = nn.Linear(size, num, bias=False) if lm_head is None else None
        if num != config.vocab_size:
            self.register_buffer("d2t", torch.zeros(num, dtype=torch.int64))
        # in a tuple, so that torch does not register them as submodules
        self.borrowed: tuple[Any, Any] = (embed, lm_head)
        self.target_dtype: torch.dtype | None = None
        self._angles = Angles(config)

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's states that it reads, numbered as by ``CausalModel.tap``."""
        return self.config.taps

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values per token."""
        return int(2 * self.config.num_key_value_heads * self.config.head_dim * self.dtype.itemsize)

    @property
    def num_parameters(self) -> int:
        """Weights used in products of a draft step: all but embeddings, which are looked up."""
        own = sum(p.numel() for name, p in self.named_parameters() if "embed_tokens" not in name)
        borrowed = self.borrowed[1]
        return own + sum(p.numel() for p in borrowed.parameters()) if borrowed else own

    @property
    def draft_ids(self) -> Tensor | None:
        """[draft_vocab_size] the target's token for each drafted one; None = the same tokens."""
        offsets: Tensor | None = getattr(self, "d2t", None)
        if offsets is None:
            return None
        return torch.arange(len(offsets), device=offsets.device) + offsets

    @property
    def lent_rows(self) -> nn.Module | None:
        """The rows of the target's output layer that the head uses, if not all."""
        return self.borrowed[1] if self.draft_ids is not None else None

    def set_vocabulary(self, ids: Tensor) -> None:
        """Set the tokens [draft_vocab_size] that a new head drafts, in ascending order."""
        self.get_buffer("d2t").copy_(ids - torch.arange(len(ids)))

    def embed(self, tokens: Tensor) -> Tensor:
        found: Tensor = (self.embed_tokens or self.borrowed[0])(tokens)
        return found.to(self.dtype)

    def fuse(self, states: Tensor) -> Tensor:
        """Combine the target's states [..., taps x D] into the input of ``forward``, [..., h]."""
        states = states.to(self.dtype)
        return self.fc(states) if self.config.generation == 3 else states

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, longest: int = 0
    ) -> Tensor:
        """g [R, T, h] of tokens [R, T] with fused or drafted states [R, T, h].

        longest: exceeds all positions; 0 = computed from them, which waits for the device.
        """
        embedded = self.embed(tokens)
        cos, sin = self._angles(positions, longest or int(positions.max()) + 1, self.fc.weight)
        if self.config.generation == 1:
            hidden = self.fc(torch.cat((embedded, hidden), dim=-1))
        found: Tensor = self.midlayer(embedded, hidden, cos, sin, attend)
        return found

    def draft_logits(self, states: Tensor) -> Tensor:
        """[..., draft_vocab_size] logits of the states g [..., h]."""
        states = states if self.norm is None else self.norm(states)
        found: Tensor = (self.lm_head or self.borrowed[1])(states)
        return found.to(self.target_dtype or found.dtype)

    def logits(self, states: Tensor) -> Tensor:
        """[..., vocab_size] logits, -inf for tokens that the head cannot draft."""
        drafted, ids = self.draft_logits(states), self.draft_ids
        if ids is None:
            return drafted
        full = drafted.new_full((*drafted.shape[:-1], self.config.vocab_size), float("-inf"))
        full[..., ids] = drafted
        return full


class _Layer(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        size, is_third = config.hidden_size, config.generation == 3
        self.self_attn = Attention(config, 2 * size if is_third else size)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = Norm(size, config.rms_norm_eps)
        self.input_layernorm = Norm(size, config.rms_norm_eps) if is_third else None
        self.hidden_norm = Norm(size, config.rms_norm_eps) if is_third else None
        self._residual_is_normed = config.norm_before_residual

    def forward(
        self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        """A decoder layer over ``hidden``, in EAGLE-1 without a norm before its attention.

        In EAGLE-3, attention reads the normed embeddings, concatenated with the normed states.
        """
        inputs = hidden
        if self.input_layernorm is not None and self.hidden_norm is not None:
            normed = self.hidden_norm(hidden)
            inputs = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
            hidden = normed if self._residual_is_normed else hidden
        hidden = hidden + self.self_attn(inputs, cos, sin, attend)
        added: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return added


class Attention(nn.Module):
    """Attention of Llama and Qwen with the caller's cache and masks."""

    def __init__(self, config: EagleConfig, num_inputs: int) -> None:
        super().__init__()
        self._dim, bias = config.head_dim, config.attention_bias
        queries = config.num_attention_heads * self._dim
        keys = config.num_key_value_heads * self._dim
        self.q_proj = nn.Linear(num_inputs, queries, bias=bias)
        self.k_proj = nn.Linear(num_inputs, keys, bias=bias)
        self.v_proj = nn.Linear(num_inputs, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = Norm(self._dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = Norm(self._dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, inputs: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q = turned(self._heads(self.q_proj, self.q_norm, inputs), cos, sin)
        k = turned(self._heads(self.k_proj, self.k_norm, inputs), cos, sin)
        found = attend(q, k, self._heads(self.v_proj, None, inputs))
        output: Tensor = self.o_proj(found.transpose(1, 2).flatten(2))
        return output

    def _heads(self, projection: nn.Module, norm: nn.Module | None, inputs: Tensor) -> Tensor:
        rows, width, _ = inputs.shape
        found: Tensor = projection(inputs).view(rows, width, -1, self._dim)
        return (found if norm is None else norm(found)).transpose(1, 2)


def read(
    head: EagleHead,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Sequence[int] | Tensor],
    hidden: Sequence[Tensor],
    trees: Sequence[Branches | None] = (),
) -> list[Tensor]:
    """Feed each of R rows its next slots, advance the cache's lengths; return R g [num_fed, h].

    tokens, hidden: [num_fed] and [num_fed, h] of each row, at least one slot. trees: [R], None = a
    chain; empty = all are chains.
    Raises ValueError if a row does not fit into the cache.
    """
    spans = [RowSpan(r, cache.lengths[r], len(fed)) for r, fed in zip(rows, tokens, strict=True)]
    device = hidden[0].device
    positions, seen = _look(spans, trees, device)
    cache.place(spans)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.update(k, v, 0)
        return scaled_dot_product_attention(
            q, keys, values, attn_mask=seen, enable_gqa=q.shape[1] != keys.shape[1]
        )

    width, longest = max(span.count for span in spans), max(span.end for span in spans)
    ids = stacked_ids(tokens, width, device)
    states = head(ids, stacked_rows(hidden, width), positions, attend, longest)
    for span in spans:
        cache.lengths[span.row] = span.end
    return [states[index, : span.count] for index, span in enumerate(spans)]


def _look(
    spans: Sequence[RowSpan], trees: Sequence[Branches | None], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Positions [R or 1, T] of the slots, and their mask [R, 1, T, used]; None = all slots."""
    counts = [span.count for span in spans]
    width, used = max(counts), max(span.end for span in spans)
    if not any(trees) and all(span.end == used and span.count == width for span in spans):
        keys = torch.arange(used, device=device)
        positions = keys[None, used - width :]
        return positions, None if width == 1 else keys <= positions[:, None, :, None]
    slots = ragged_slots([span.start for span in spans], counts)
    queries, _, seen = tree_masks(trees, slots, used, device)
    return queries, seen[:, None]


@torch.no_grad()
def lent_rows(layer: nn.Module, ids: Tensor) -> nn.Linear:
    """A frozen copy [n, D] of the rows of an output layer [V, D] for the tokens [n].

    Source: FR-Spec (Zhao et al. 2025, arXiv 2502.14856): drafting over frequent tokens saves most
    of the output layer's cost; the target verifies over all tokens.
    """
    own = {name: weights[ids.to(weights.device)] for name, weights in layer.named_parameters()}
    with torch.device("meta"):
        lent = nn.Linear(own["weight"].shape[1], len(ids), bias="bias" in own)
    lent.load_state_dict(own, assign=True)
    return lent.requires_grad_(False)
