"""MTP heads: the layer for tokens after the next that checkpoints bring, on the target's states."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from draftwise.nn.eagle import Attend
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

ATTENTION = "draftwise_head"
"""The name under which ``transformers`` knows the attention of a layer that a head lent itself."""


@dataclass(frozen=True, slots=True)
class MtpStyle:
    """In what families of heads differ. hidden_first: the state stands before the embedding in
    ``proj``'s input. returns_normed: what it drafts on from is what its ``norm`` made."""

    hidden_first: bool = False
    returns_normed: bool = True


class MtpHead(nn.Module):
    """One decoder layer of the target's own kind that reads a token beside a state.

    Source: DeepSeek-V3 (2024, arXiv 2412.19437), section 2.2; what families do differently is as
        in vLLM's models of them. Slot s reads token s + 1 and the target's last state after token
        s, normed by the target; its output says what token s + 2 may be, and stands in place of
        the target's states where it drafts on (vLLM does so, too, with heads of one layer).
    Differs: vLLM blanks the embedding in slot 0 for DeepSeek and MiMo; here it is read.
    State: the weights. Cost: one layer and the target's ``lm_head`` a token.
    """

    def __init__(self, target: CausalModel, style: MtpStyle, borrows: set[str]) -> None:
        """borrows: which of ``embed`` and ``lm_head`` are the target's."""
        super().__init__()
        self._style, self.taps = style, (target.num_layers,)
        module, size = target.module, target.hidden_size
        self.proj = nn.Linear(2 * size, size, bias=False)
        self.layer, rotary = _layer_like(target)
        self.embed_norm, self.hidden_norm, self.norm = (_norm_like(target) for _ in range(3))
        self.embed = None if "embed" in borrows else nn.Embedding(target.vocab_size, size)
        self.lm_head = None
        if "lm_head" not in borrows:
            self.lm_head = nn.Linear(size, target.vocab_size, bias=False)
        theirs = module.get_input_embeddings(), module.get_output_embeddings(), rotary
        self._borrowed = theirs  # in a tuple, so that torch does not count them as ours

    @property
    def title(self) -> str:
        """What it is, in a word."""
        return "MTP"

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return self.proj.weight.dtype

    @property
    def token_bytes(self) -> int:
        """Of keys and values, about: attention may keep them in another form."""
        attention = self.layer.self_attn.config
        heads = getattr(attention, "num_key_value_heads", None) or attention.num_attention_heads
        dim = getattr(attention, "head_dim", None)
        dim = dim or attention.hidden_size // attention.num_attention_heads
        return int(2 * heads * dim * self.dtype.itemsize)

    @property
    def num_parameters(self) -> int:
        """Weights that a draft step multiplies with, at most: experts are all counted."""
        own = sum(p.numel() for name, p in self.named_parameters() if not name.startswith("embed."))
        lent = self._borrowed[1] if self.lm_head is None else None
        return own + sum(p.numel() for p in lent.parameters()) if lent is not None else own

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [..., D] are read as they are."""
        return states

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, longest: int = 0
    ) -> Tensor:
        """States [R, T, D] of tokens [R, T] with the target's or its own states beside them."""
        embedded = self.embed_norm((self.embed or self._borrowed[0])(tokens))
        pair = (embedded, self.hidden_norm(hidden))
        mixed = self.proj(torch.cat(pair[::-1] if self._style.hidden_first else pair, dim=-1))
        found = self.layer(
            mixed,
            attention_mask=None,
            position_ids=positions,
            past_key_values=None,
            use_cache=False,
            position_embeddings=self._borrowed[2](mixed, positions),
            attend=attend,
        )
        found = found[0] if isinstance(found, tuple) else found
        normed: Tensor = self.norm(found) if self._style.returns_normed else found
        return normed

    def logits(self, states: Tensor) -> Tensor:
        """[..., V] logits of its states."""
        if not self._style.returns_normed:
            states = self.norm(states)
        found: Tensor = (self.lm_head or self._borrowed[1])(states)
        return found


def _layer_like(target: CausalModel) -> tuple[Any, Any]:
    """An empty decoder layer of the kind of the target's last full attention, and its rotary.

    Raises DraftwiseError for a target whose layers are not of the usual form.
    """
    inner = target.module.base_model
    layers, rotary = getattr(inner, "layers", None), getattr(inner, "rotary_emb", None)
    if layers is None or rotary is None or "layer_type" in signature(rotary.forward).parameters:
        raise DraftwiseError(
            f"{target.name} has no layers with one kind of rotary positions: no MTP head can be"
        )
    config = copy.deepcopy(target.module.config.get_text_config())
    config._attn_implementation = ATTENTION
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * len(layers))
    if "full_attention" not in kinds:
        raise DraftwiseError(f"no layer of {target.name} sees all of a text: no MTP head can be")
    place = len(kinds) - 1 - kinds[::-1].index("full_attention")
    return type(layers[place])(config, place), rotary


def _norm_like(target: CausalModel) -> nn.Module:
    """A norm of the kind of the target's last."""
    config = target.module.config.get_text_config()
    made: nn.Module = type(target.module.base_model.norm)(
        config.hidden_size, eps=config.rms_norm_eps
    )
    return made


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Attention by the ``attend`` that was handed to the layer, at the layer's own scale."""
    scale = more.get("scaling")
    if scale is not None:
        query = query * (scale * query.shape[-1] ** 0.5)
    return more["attend"](query, key, value).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _attend)
