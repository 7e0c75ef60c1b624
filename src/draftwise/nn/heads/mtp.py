"""MTP heads: a checkpoint's multi-token-prediction layer over the target's hidden states."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AttentionInterface

from draftwise.nn.heads.eagle import Attend, BorrowingHead, fill
from draftwise.nn.heads.files import find_folder, read_settings, refuse_other_target
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

KIND = "MTP head"
ATTENTION = "draftwise_head"
"""The ``attn_implementation`` of a head's layer, registered with ``transformers``."""


@dataclass(frozen=True, slots=True)
class MtpStyle:
    """hidden_first: state before embedding. returns_normed: drafts continue from normed states."""

    hidden_first: bool = False
    returns_normed: bool = True


class MtpHead(BorrowingHead):
    """One decoder layer of the target's kind that reads a token and a hidden state.

    Source: DeepSeek-V3 (2024, arXiv 2412.19437), section 2.2; differences of families as in vLLM.
    Slot s reads token s + 1 and the target's last, normed state after token s; its output predicts
    token s + 2 and replaces the target's state for further drafted tokens. Difference: vLLM zeroes
    the embedding in slot 0 for DeepSeek and MiMo. Cost: one layer and the target's ``lm_head`` per
    token.
    """

    title = "MTP"

    def __init__(self, target: CausalModel, style: MtpStyle, borrows: set[str]) -> None:
        """borrows: which of ``embed`` and ``lm_head`` are the target's."""
        super().__init__()
        self._style, self.taps = style, (target.num_layers,)
        module, size, vocab_size = target.module, target.hidden_size, target.vocab_size
        self.proj = nn.Linear(2 * size, size, bias=False)
        self.layer, rotary = _layer_like(target)
        norm, eps = type(module.base_model.norm), module.config.get_text_config().rms_norm_eps
        self.embed_norm, self.hidden_norm, self.norm = (norm(size, eps=eps) for _ in range(3))
        embed = module.get_input_embeddings() if "embed" in borrows else None
        lm_head = module.get_output_embeddings() if "lm_head" in borrows else None
        self.borrow(size, vocab_size, vocab_size, embed, lm_head)
        self._rotary = (rotary,)  # in a tuple, so that torch does not register it

    @property
    def token_bytes(self) -> int:
        """Approximate bytes of keys and values; attention may keep them in another form."""
        attention = self.layer.self_attn.config
        heads = getattr(attention, "num_key_value_heads", None) or attention.num_attention_heads
        dim = getattr(attention, "head_dim", None)
        dim = dim or attention.hidden_size // attention.num_attention_heads
        return int(2 * heads * dim * self.dtype.itemsize)

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, longest: int = 0
    ) -> Tensor:
        """States [R, T, D] of tokens [R, T] with the target's or the head's states."""
        pair = (self.embed_norm(self.embed(tokens)), self.hidden_norm(hidden))
        mixed = self.proj(torch.cat(pair[::-1] if self._style.hidden_first else pair, dim=-1))
        found = self.layer(
            mixed,
            attention_mask=None,
            position_ids=positions,
            past_key_values=None,
            use_cache=False,
            position_embeddings=self._rotary[0](mixed, positions),
            attend=attend,
        )
        found = found[0] if isinstance(found, tuple) else found
        normed: Tensor = self.norm(found) if self._style.returns_normed else found
        return normed

    def draft_logits(self, states: Tensor) -> Tensor:
        return super().draft_logits(states if self._style.returns_normed else self.norm(states))


def _layer_like(target: CausalModel) -> tuple[Any, Any]:
    """An uninitialised layer like the target's last one with full attention, and its rotary module.

    Errors: DraftwiseError for a target with unusual layers.
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


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Attention by the caller's ``attend``, at the layer's scale."""
    scale = more.get("scaling")
    if scale is not None:
        query = query * (scale * query.shape[-1] ** 0.5)
    return more["attend"](query, key, value).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _attend)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The naming scheme of one family: a pattern with the layer's number, and names after it.

    shared: prefix of names outside the layer; None = there are none.
    """

    pattern: str
    names: Mapping[str, str]
    style: MtpStyle
    shared: str | None = None

    def has(self, name: str) -> bool:
        is_shared = self.shared is not None and name.startswith(self.shared)
        return is_shared or bool(re.match(self.pattern, name))


_MIMO = {
    "token_layernorm": "embed_norm",
    "hidden_layernorm": "hidden_norm",
    "input_proj": "proj",
    "final_layernorm": "norm",
}
_DEEPSEEK = {
    "enorm": "embed_norm",
    "hnorm": "hidden_norm",
    "eh_proj": "proj",
    "shared_head.norm": "norm",
    "shared_head.head": "lm_head",
    "embed_tokens": "embed_tokens",
}
_QWEN = {
    "pre_fc_norm_embedding": "embed_norm",
    "pre_fc_norm_hidden": "hidden_norm",
    "fc": "proj",
    "norm": "norm",
}
_EXPERT = re.compile(r"(.*experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")


def _layouts(num_layers: int) -> tuple[_Layout, ...]:
    """Layouts of the weights of ``speculators``, MiMo, Qwen3-Next, and DeepSeek-V3 and GLM."""
    after_the_last = rf"model\.layers\.({num_layers}|{num_layers + 1})\."
    return (
        # a folder of the head alone: all tensors must match
        _Layout(r"mtp_layers\.(\d+)\.", _MIMO, MtpStyle(), shared=""),
        _Layout(r"model\.mtp_layers\.(\d+)\.", _MIMO, MtpStyle(hidden_first=True)),
        _Layout(r"mtp\.layers\.(\d+)\.", _QWEN, MtpStyle(), shared="mtp."),
        _Layout(after_the_last, _DEEPSEEK, MtpStyle(returns_normed=False)),
    )


def load_mtp_head(source: str | Path, target: CausalModel) -> MtpHead:
    """The MTP head in a checkpoint, in the target's dtype and on its device.

    source: a folder or hub id, the target's own or one of ``speculators``. Takes the layouts of
    DeepSeek-V3 and GLM (``model.layers.N.eh_proj``), Qwen3-Next (``mtp.fc``), MiMo
    (``model.mtp_layers.0``) and ``speculators`` (``mtp_layers.0``), and reads only these tensors.
    Missing embeddings and ``lm_head`` are the target's. Raises DraftwiseError for no or several
    layers, a missing or unexpected key (such as scales of 8-bit weights), or another size.
    """
    folder = find_folder(str(source), KIND, ["*.safetensors", "*.json"])
    layer = read_settings(folder, KIND)
    layer = layer.get("transformer_layer_config") or layer.get("text_config") or layer
    what = f"{KIND} {folder}"
    refuse_other_target(what, layer.get("hidden_size", 0), layer.get("vocab_size", 0), target)
    layout, weights = _find(folder, target.num_layers)
    found = _fused(_renamed(weights, layout, what))
    named = {"embed": "embed_tokens.weight", "lm_head": "lm_head.weight"}
    borrows = {part for part, name in named.items() if name not in found}
    with torch.device("meta"):  # the weights come from the file
        head = MtpHead(target, layout.style, borrows)
    return fill(head, found, target, what)


def _find(folder: Path, num_layers: int) -> tuple[_Layout, dict[str, Tensor]]:
    places: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                places |= dict.fromkeys(opened.keys(), file)
        except Exception as error:
            raise DraftwiseError(f"{file} cannot be read as weights: {error}") from error
    for layout in _layouts(num_layers):
        if any(re.match(layout.pattern, name) for name in places):
            taken = {name for name in places if layout.has(name)}
            found: dict[str, Tensor] = {}
            for file in {places[name] for name in taken}:
                with safe_open(file, framework="pt") as opened:
                    found |= {n: opened.get_tensor(n) for n in taken if places[n] == file}
            return layout, found
    raise DraftwiseError(
        f"{folder} has no MTP head: no model.layers.{num_layers}.eh_proj, mtp.fc, "
        "model.mtp_layers.0 or mtp_layers.0 in its safetensors"
    )


def _renamed(weights: Mapping[str, Tensor], layout: _Layout, what: str) -> dict[str, Tensor]:
    """Weights under this project's names; DraftwiseError for a second layer."""
    numbers = {m.group(1) for name in weights if (m := re.match(layout.pattern, name))}
    if len(numbers) > 1:
        raise DraftwiseError(f"{what} has {len(numbers)} layers: only heads of one are served")
    found = {}
    for name, tensor in weights.items():
        match = re.match(layout.pattern, name)
        rest = name[match.end() :] if match else name.removeprefix(layout.shared or "")
        begin, _, end = rest.rpartition(".")
        if begin in layout.names:
            found[f"{layout.names[begin]}.{end}"] = tensor
        else:
            found[f"layer.{rest}" if match else rest] = tensor
    return found


def _fused(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack experts that are stored one by one, as ``transformers`` has them in memory."""
    found, experts = {}, dict[str, dict[int, dict[str, Tensor]]]()
    for name, tensor in weights.items():
        match = _EXPERT.fullmatch(name)
        if match:
            begin, number, part = match.groups()
            experts.setdefault(begin, {}).setdefault(int(number), {})[part] = tensor
        else:
            found[name] = tensor
    for begin, by_number in experts.items():
        rows = [by_number[number] for number in sorted(by_number)]
        if any(len(row) < 3 for row in rows):
            raise DraftwiseError(f"{KIND}: an expert of {begin} lacks one of its three weights")
        pairs = [torch.cat((row["gate_proj"], row["up_proj"])) for row in rows]
        found[f"{begin}.gate_up_proj"] = torch.stack(pairs)
        found[f"{begin}.down_proj"] = torch.stack([row["down_proj"] for row in rows])
    return found
