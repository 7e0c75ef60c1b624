"""MTP heads on disk: in the target's own checkpoint, or by themselves as ``speculators`` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from draftwise.nn.head_files import find_folder, read_settings, refuse_mismatch, refuse_other_target
from draftwise.nn.layout import lay_out
from draftwise.nn.model import CausalModel
from draftwise.nn.mtp import MtpHead, MtpStyle
from draftwise.types import DraftwiseError

KIND = "MTP head"


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one family names its weights: a pattern with the layer's number, and names behind it."""

    family: str
    pattern: str
    names: Mapping[str, str]
    style: MtpStyle
    shared: str = ""
    """Begin of names outside the layer."""


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
    "embed_tokens": "embed",
}
_QWEN = {
    "pre_fc_norm_embedding": "embed_norm",
    "pre_fc_norm_hidden": "hidden_norm",
    "fc": "proj",
    "norm": "norm",
}
_EXPERT = re.compile(r"(.*experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")


def _layouts(num_layers: int) -> tuple[_Layout, ...]:
    return (
        _Layout("speculators", r"mtp_layers\.(\d+)\.", _MIMO, MtpStyle()),
        _Layout("MiMo", r"model\.mtp_layers\.(\d+)\.", _MIMO, MtpStyle(hidden_first=True)),
        _Layout("Qwen3-Next", r"mtp\.layers\.(\d+)\.", _QWEN, MtpStyle(), "mtp."),
        _Layout(
            "DeepSeek-V3 and GLM",
            rf"model\.layers\.({num_layers}|{num_layers + 1})\.",
            _DEEPSEEK,
            MtpStyle(returns_normed=False),
        ),
    )


def load_mtp_head(source: str | Path, target: CausalModel) -> MtpHead:
    """The MTP head in a checkpoint, in the target's dtype and on its device.

    source: a folder or hub id, the target's own or one of ``speculators``. Read are the layouts of
    DeepSeek-V3 and GLM (``model.layers.N.eh_proj``), Qwen3-Next (``mtp.fc``), MiMo
    (``model.mtp_layers.0``) and ``speculators`` (``mtp_layers.0``); of a target's checkpoint only
    these tensors. The layer is one of the target's own kind; embeddings and ``lm_head`` that are
    not there are the target's. Raises DraftwiseError where there is none or more than one layer,
    for a key that is missing or left over (as scales of 8-bit weights are), or another size.
    """
    folder = find_folder(str(source), KIND, ["*.safetensors", "*.json"])
    layer = read_settings(folder, KIND)
    layer = layer.get("transformer_layer_config") or layer.get("text_config") or layer
    what = f"{KIND} {folder}"
    refuse_other_target(what, layer.get("hidden_size", 0), layer.get("vocab_size", 0), target)
    layout, weights = _find(folder, target.num_layers)
    found = _fused(_renamed(weights, layout, what))
    borrows = {name for name in ("embed", "lm_head") if f"{name}.weight" not in found}
    with torch.device("meta"):  # the weights come from the file
        head = MtpHead(target, layout.style, borrows)
    refuse_mismatch(what, {n: tuple(p.shape) for n, p in head.state_dict().items()}, found)
    cast = {n: t.to(target.device, _dtype_of(head, n, target)) for n, t in found.items()}
    head.load_state_dict(cast, strict=True, assign=True)
    lay_out(head)
    return head.eval().requires_grad_(False)


def _dtype_of(head: MtpHead, name: str, target: CausalModel) -> torch.dtype:
    """Of weights the target's; of what is made to be finer (routers' biases), its own."""
    is_buffer = name in dict(head.named_buffers())
    return head.state_dict()[name].dtype if is_buffer else target.dtype


def _find(folder: Path, num_layers: int) -> tuple[_Layout, dict[str, Tensor]]:
    """The layout whose names are in the folder's files, and the tensors that belong to it."""
    files = sorted(folder.glob("*.safetensors"))
    places: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                places |= dict.fromkeys(opened.keys(), file)
        except Exception as error:
            raise DraftwiseError(f"{file} cannot be read as weights: {error}") from error
    for layout in _layouts(num_layers):
        if any(re.match(layout.pattern, name) for name in places):
            is_own = layout.family == "speculators"  # a folder of the head alone: all must fit
            taken = [n for n in places if is_own or _belongs(n, layout)]
            return layout, _read(places, taken)
    raise DraftwiseError(
        f"{folder} has no MTP head: no model.layers.{num_layers}.eh_proj, mtp.fc, "
        "model.mtp_layers.0 or mtp_layers.0 in its safetensors"
    )


def _belongs(name: str, layout: _Layout) -> bool:
    return bool(re.match(layout.pattern, name)) or (
        bool(layout.shared) and name.startswith(layout.shared)
    )


def _read(places: Mapping[str, Path], names: list[str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted({places[name] for name in names}):
        with safe_open(file, framework="pt") as opened:
            found |= {name: opened.get_tensor(name) for name in names if places[name] == file}
    return found


def _renamed(weights: Mapping[str, Tensor], layout: _Layout, what: str) -> dict[str, Tensor]:
    """By our names; DraftwiseError for a second layer."""
    numbers = {m.group(1) for name in weights if (m := re.match(layout.pattern, name))}
    if len(numbers) > 1:
        raise DraftwiseError(f"{what} has {len(numbers)} layers: only heads of one are served")
    found = {}
    for name, tensor in weights.items():
        match = re.match(layout.pattern, name)
        rest = name[match.end() :] if match else name.removeprefix(layout.shared)
        begin, _, end = rest.rpartition(".")
        is_named = begin in layout.names and (match is None) == bool(layout.shared)
        if is_named:
            found[f"{layout.names[begin]}.{end}"] = tensor
        elif match:
            found[f"layer.{rest}"] = tensor
        else:
            found[{"embed_tokens.weight": "embed.weight"}.get(rest, rest)] = tensor
    return found


def _fused(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Experts that are stored one by one, stacked as ``transformers`` has them in memory."""
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
