"""DFlash heads: a few layers that fill a block of masks at once, beside the target's states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftwise.nn.heads.eagle import Angles, EagleConfig, Mlp, Norm, drafted_ids, spread, turned

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, H, S, d], own k and v [N, G, S, d] of N blocks) -> [N, H, S, d]."""
Store = Callable[[int, Tensor, Tensor], None]
"""(layer, k and v [R, G, T, d] of what was read of R texts)."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What a block is: slots of one, with the last token's in front; the token that is a mask;
    first: the slot that says what follows the last token, 1, or 0 where heads are so trained."""

    size: int
    mask: int
    first: int

    @property
    def longest(self) -> int:
        """Tokens that one block drafts."""
        return self.size - self.first


class DFlashHead(nn.Module):
    """Layers whose keys and values are of the target's states, and of a block that sees itself.

    Source: DFlash (Chen et al. 2026, arXiv 2602.06036), as ``speculators`` 0.9 writes it: states of
        some of the target's layers, reduced by ``fc`` and normed, are keys and values in every
        layer, at their positions; the block is the last token and masks, looks at all of them and,
        both ways, at itself; slot s says which token stands at its own place.
    Differs: none. Names of parameters are those of its checkpoints.
    State: the weights; a table of rotary angles. Cost: one forward of a block a draft.
    """

    def __init__(
        self,
        config: EagleConfig,
        num_layers: int,
        block: BlockShape,
        embed: nn.Module,
        lm_head: nn.Module | None,
    ) -> None:
        """embed: the target's; lm_head: too, or None for one of its own."""
        super().__init__()
        self.config, self.block, size = config, block, config.hidden_size
        self.fc = nn.Linear(len(config.taps) * config.target_hidden_size, size, bias=False)
        self.hidden_norm, self.norm = Norm(size, config.eps), Norm(size, config.eps)
        self.layers = nn.ModuleList(_BlockLayer(config) for _ in range(num_layers))
        is_own = lm_head is None
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False) if is_own else None
        if config.draft_vocab_size != config.vocab_size:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self._borrowed = (embed, lm_head)  # in a tuple, so that torch does not count them as ours
        self._angles = Angles(config)

    @property
    def draft_ids(self) -> Tensor | None:
        """[draft_vocab_size] the target's token for each drafted one; None = all, as they are."""
        return drafted_ids(getattr(self, "d2t", None))

    @property
    def num_parameters(self) -> int:
        """Weights that a block multiplies with."""
        own = sum(p.numel() for p in self.parameters())
        lent = self._borrowed[1]
        return own + sum(p.numel() for p in lent.parameters()) if lent is not None else own

    def read(self, states: Tensor, positions: Tensor, store: Store, longest: int) -> None:
        """Keys and values of the target's states [R, T, taps x D] at positions [R, T] < longest."""
        fused = self.hidden_norm(self.fc(states))
        cos, sin = self._angles(positions, longest, self.fc.weight)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, _BlockLayer)
            store(number, *layer.self_attn.look(fused, cos, sin))

    def forward(self, last: Tensor, positions: Tensor, attend: Attend, longest: int) -> Tensor:
        """States [N, S, h] of blocks behind the tokens ``last`` [N], which stand at ``positions``.

        Slots from ``block.first`` on say what stands behind the last token. longest: blocks end
        before it.
        """
        slots = torch.arange(self.block.size, device=last.device)
        tokens = torch.full((len(last), self.block.size), self.block.mask, device=last.device)
        tokens[:, 0] = last
        hidden = self._borrowed[0](tokens)
        cos, sin = self._angles(positions[:, None] + slots, longest, self.fc.weight)
        for number, layer in enumerate(self.layers):

            def seen(q: Tensor, k: Tensor, v: Tensor, number: int = number) -> Tensor:
                return attend(number, q, k, v)

            hidden = layer(hidden, cos, sin, seen)
        normed: Tensor = self.norm(hidden)
        return normed

    def logits(self, states: Tensor) -> Tensor:
        """[..., vocab_size] logits: minus infinity for tokens that it cannot draft."""
        drafted = (self.lm_head or self._borrowed[1])(states)  # type: ignore[misc]
        return spread(drafted, self.draft_ids, self.config.vocab_size)


class _BlockLayer(nn.Module):
    """A decoder layer of a block."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = _BlockAttention(config), Mlp(config)
        self.input_layernorm = Norm(config.hidden_size, config.eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.eps)

    def forward(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin, attend)
        added: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return added


class _BlockAttention(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self._dim, bias, size = config.head_dim, config.attention_bias, config.hidden_size
        queries, keys = (n * self._dim for n in (config.num_heads, config.num_kv_heads))
        self.q_proj = nn.Linear(size, queries, bias=bias)
        self.k_proj = nn.Linear(size, keys, bias=bias)
        self.v_proj = nn.Linear(size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, size, bias=bias)
        self.q_norm, self.k_norm = Norm(self._dim, config.eps), Norm(self._dim, config.eps)

    def look(self, inputs: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, G, T, d] of inputs [R, T, h]."""
        k, v = self._heads(self.k_proj, inputs), self._heads(self.v_proj, inputs)
        return turned(self.k_norm(k), cos, sin), v

    def forward(
        self,
        inputs: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        q = turned(self.q_norm(self._heads(self.q_proj, inputs)), cos, sin)
        found = attend(q, *self.look(inputs, cos, sin))
        output: Tensor = self.o_proj(found.transpose(1, 2).flatten(2))
        return output

    def _heads(self, projection: nn.Module, inputs: Tensor) -> Tensor:
        rows, width, _ = inputs.shape
        found: Tensor = projection(inputs).view(rows, width, -1, self._dim).transpose(1, 2)
        return found
