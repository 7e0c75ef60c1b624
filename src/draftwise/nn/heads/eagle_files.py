"""EAGLE heads on disk: strict about every key, in the authors' layout and in vLLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from draftwise.nn.cpu.layout import lay_out
from draftwise.nn.heads.dflash import DFlashHead
from draftwise.nn.heads.eagle import EagleConfig, EagleHead, lent_rows, one_rope
from draftwise.nn.heads.files import (
    find_folder,
    read_settings,
    read_weights,
    refuse_mismatch,
    refuse_other_target,
)
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

KIND = "EAGLE head"
LENT = "lm_head_from_target"
"""Ours: true in ``config.json`` where ``lm_head`` is the target's, at the rows of ``d2t``."""
_OURS = {
    "layers.0.": "midlayer.",
    "transformer.": "midlayer.",
    "fusion_fc.": "fc.",
    "draft_id_to_target_id": "d2t",
    "target_id_to_draft_id": "t2d",
}
"""How names of the layouts begin, and what the same is called here (and in EAGLE-3's own files)."""
_UNKNOWN = ("norm_before_fc", "fc_norm", "norm_output", "layernorms")
"""Variants that some heads of ``speculators`` have: a head drafts nonsense if they are ignored."""
_ROPE = ("rope_parameters", "rope_scaling", "rope_theta")


def load_head(source: str | Path, target: CausalModel) -> EagleHead:
    """A head for this target from a folder or hub id, in the target's dtype and on its device.

    Takes the authors' layout (``config.json`` beside ``model.safetensors`` or
    ``pytorch_model.bin``) and that of vLLM's ``speculators``. Embeddings and ``lm_head`` that are
    not there are the target's. Raises DraftwiseError that names a missing or unmatched key, a
    shape, a variant that is not served, or both sizes where the head was made for another target.
    """
    folder = find_folder(str(source), KIND, ["*.safetensors", "*.bin"])
    settings = read_settings(folder, KIND)
    weights = _renamed(read_head_weights(folder), folder)
    config = _config(settings, weights, target, folder)
    what = f"{KIND} {folder}"
    refuse_other_target(what, config.target_hidden_size, config.vocab_size, target)
    lent = _lent(settings, weights, config, target)
    with torch.device("meta"):  # the weights come from the file
        head = EagleHead(
            config,
            None if "embed_tokens.weight" in weights else target.module.get_input_embeddings(),
            lent,
        )
    fill(head, weights, target, what)
    lay_out(head)
    return head.eval().requires_grad_(False)


def _lent(
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    config: EagleConfig,
    target: CausalModel,
) -> nn.Module | None:
    """What a head without ``lm_head`` takes of the target's; of a part only if it says so."""
    if "lm_head.weight" in weights:
        return None
    theirs: nn.Module = target.module.get_output_embeddings()
    if config.draft_vocab_size == config.vocab_size:
        return theirs
    offsets = weights.get("d2t")
    if not settings.get(LENT) or offsets is None or config.vocab_size != target.vocab_size:
        return None  # and the keys' check says what is missing
    ids = torch.arange(len(offsets)) + offsets
    is_tied = target.module.config.get_text_config().tie_word_embeddings
    if is_tied:  # the same rows, and not packed into a few bits
        theirs = target.module.get_input_embeddings()
    return lent_rows(theirs, ids.clamp(0, target.vocab_size - 1))  # ``fill`` refuses others


def read_head_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a head's folder; DraftwiseError where there are none."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise DraftwiseError(f"{folder} has neither model.safetensors nor pytorch_model.bin")
    return read_weights(files)


def _renamed(weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The same weights by our names; ``t2d`` follows from ``d2t`` and is left out."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        start = next((start for start in _OURS if name.startswith(start)), "")
        ours = _OURS.get(start, "") + name.removeprefix(start)
        if ours in found:
            raise DraftwiseError(f"{folder}: {name!r} is there twice, under two layouts' names")
        found[ours] = tensor
    found.pop("t2d", None)
    return found


def _config(
    settings: Mapping[str, Any], weights: Mapping[str, Tensor], target: CausalModel, folder: Path
) -> EagleConfig:
    layer = settings.get("transformer_layer_config", settings)
    missing = [
        key
        for key in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        if not isinstance(layer.get(key), int)
    ]
    if missing:
        raise DraftwiseError(f"{folder}/config.json has no {missing[0]!r}: is this an EAGLE head?")
    served = [name for name in _UNKNOWN if settings.get(name)]
    if served or layer.get("num_hidden_layers", 1) != 1:
        what = served[0] if served else f"{layer['num_hidden_layers']} layers"
        raise DraftwiseError(f"{folder} is an EAGLE head with {what}, which is not served")
    is_third, size, heads = (
        _is_third(settings, weights),
        layer["hidden_size"],
        "num_attention_heads",
    )
    attention = "midlayer.self_attn."
    return EagleConfig(
        generation=3 if is_third else 1,
        hidden_size=size,
        intermediate_size=layer["intermediate_size"],
        num_heads=layer[heads],
        num_kv_heads=layer.get("num_key_value_heads") or layer[heads],
        head_dim=layer.get("head_dim") or size // layer[heads],
        vocab_size=layer["vocab_size"],
        draft_vocab_size=settings.get("draft_vocab_size") or layer["vocab_size"],
        target_hidden_size=settings.get("target_hidden_size") or size,
        taps=_taps(settings, target) if is_third else (target.num_layers,),
        rope=rope_of(layer, target),
        max_positions=layer.get("max_position_embeddings") or 2048,
        eps=layer.get("rms_norm_eps") or 1e-6,
        act=layer.get("hidden_act") or "silu",
        fc_bias="fc.bias" in weights or bool(settings.get("fusion_bias")),
        attention_bias=f"{attention}q_proj.bias" in weights,
        mlp_bias="midlayer.mlp.up_proj.bias" in weights,
        qk_norm=f"{attention}q_norm.weight" in weights,
        norm_before_residual=bool(settings.get("norm_before_residual")),
    )


def _is_third(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    kind = settings.get("speculators_model_type")
    if kind not in {None, "eagle", "eagle3"}:
        raise DraftwiseError(f"this is a speculator of the kind {kind!r}; served: eagle, eagle3")
    is_named = any("eagle3" in str(name).lower() for name in settings.get("architectures") or [])
    marks = {"midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight", "d2t"}
    return kind == "eagle3" or is_named or bool(marks & weights.keys())


def default_taps(num_layers: int) -> tuple[int, ...]:
    """What EAGLE-3 heads look at unless they say otherwise: inputs of layers 2, n/2 and n - 3.

    >>> default_taps(32)
    (2, 16, 29)
    """
    return tuple(sorted((min(2, num_layers), num_layers // 2, max(0, num_layers - 3))))


def _taps(settings: Mapping[str, Any], target: CausalModel) -> tuple[int, ...]:
    """In rising order, as the states stand side by side; a number n taps the INPUT of layer n.

    vLLM and speculators count so, in the key of their own; ``eagle_config`` (SGLang, SpecForge,
    ModelOpt) counts layers whose OUTPUT is meant, which is the input of the next.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    outputs = (settings.get("eagle_config") or {}).get(key) or []
    given = settings.get(key) or [number + 1 for number in outputs]
    return tuple(sorted(given)) if given else default_taps(target.num_layers)


def rope_of(layer: Mapping[str, Any], target: CausalModel) -> dict[str, Any]:
    """The head's own rotary settings in the form of transformers 5, or else the target's."""
    theirs: dict[str, Any] = layer.get("rope_parameters") or {}
    if not theirs and any(layer.get(key) for key in _ROPE):
        theirs = dict(layer.get("rope_scaling") or {})
        theirs["rope_type"] = theirs.pop("type", None) or theirs.get("rope_type", "default")
        theirs["rope_theta"] = layer.get("rope_theta") or 10000.0
    if not theirs:
        config = target.module.config.get_text_config()
        theirs = getattr(config, "rope_parameters", None) or {}
    return {"rope_type": "default", "rope_theta": 10000.0} | one_rope(theirs)


def fill(
    head: EagleHead | DFlashHead, weights: dict[str, Tensor], target: CausalModel, what: str
) -> None:
    """Load every weight into its place; refuse what is missing, left over or of another shape."""
    wanted = {name: tuple(place.shape) for name, place in head.state_dict().items()}
    offsets = weights.get("d2t")
    if "d2t" not in wanted and offsets is not None and not offsets.any():
        weights.pop("d2t")  # the whole vocabulary, in its own order
    refuse_mismatch(what, wanted, weights)
    cast = {
        name: tensor.to(target.device, None if name == "d2t" else target.dtype)
        for name, tensor in weights.items()
    }
    head.load_state_dict(cast, strict=True, assign=True)
    ids = head.draft_ids
    if ids is not None and (len(set(ids.tolist())) < len(ids) or not _inside(ids, target)):
        raise DraftwiseError(
            f"{what}: d2t does not lead to {len(ids)} different tokens below {target.vocab_size}"
        )


def _inside(ids: Tensor, target: CausalModel) -> bool:
    return bool(ids.min() >= 0) and bool(ids.max() < target.vocab_size)


LAYOUTS = ("authors", "speculators")


def save_head(
    head: EagleHead,
    folder: Path,
    *,
    layout: str = "authors",
    dtype: torch.dtype | None = None,
    verifier: str = "",
) -> None:
    """Write ``config.json`` and ``model.safetensors``; what the head borrows is left out.

    But for ``speculators``, which knows no part of a target's ``lm_head``: it is written out.

    layout: ``authors`` (SafeAILab/EAGLE) or ``speculators`` (vLLM); both are read by ``load_head``.
    dtype: of the stored weights, None = as they are. verifier: the target's name, for vLLM.
    Raises DraftwiseError for an unknown layout.
    """
    if layout not in LAYOUTS:
        raise DraftwiseError(f"unknown layout {layout!r}; the layouts are: {', '.join(LAYOUTS)}")
    config, is_third = head.config, head.config.generation == 3
    layer, fc = ("midlayer.", "fc.") if is_third else ("layers.0.", "fc.")
    if layout == "speculators":
        layer, fc = ("layers.0.", "fc.") if is_third else ("transformer.", "fusion_fc.")
    weights: dict[str, Tensor] = {}
    for name, tensor in head.state_dict().items():
        for ours, theirs in (("midlayer.", layer), ("fc.", fc)):
            if name.startswith(ours):
                name = theirs + name.removeprefix(ours)
                break
        is_float = tensor.is_floating_point()
        weights[name] = (tensor.to(dtype) if is_float else tensor).contiguous().clone()
    lent = head.lent_rows
    if lent is not None and layout != "authors":
        rows = lent.get_parameter("weight").detach()
        weights["lm_head.weight"] = rows.to(dtype or rows.dtype).clone()
    if head.draft_ids is not None:
        weights["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        weights["t2d"][head.draft_ids.cpu()] = True
    settings = _layer(config)
    if layout == "authors":
        settings |= _authors(config) | ({LENT: True} if lent is not None else {})
    else:
        settings = _speculators(config, settings, verifier)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, "utf-8")


def _layer(config: EagleConfig) -> dict[str, Any]:
    """The layer as a Llama configuration."""
    return {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.act,
        "rms_norm_eps": config.eps,
        "max_position_embeddings": config.max_positions,
        "rope_parameters": config.rope,
        "rope_theta": config.rope.get("rope_theta", 10000.0),  # where transformers 4 looks
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": False,
    }


def _authors(config: EagleConfig) -> dict[str, Any]:
    if config.generation != 3:
        return {"architectures": ["LlamaForCausalLM"], "bias": config.fc_bias}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        # layers whose output is tapped, not their input: see eagle_files._taps
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in config.taps]},
        "norm_before_residual": config.norm_before_residual,
    }


def _speculators(config: EagleConfig, layer: dict[str, Any], verifier: str) -> dict[str, Any]:
    is_third = config.generation == 3
    algorithm = "eagle3" if is_third else "eagle"
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 5,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    own: dict[str, Any] = {"fusion_bias": config.fc_bias, "layernorms": False}
    if is_third:
        own = {
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "norm_before_residual": config.norm_before_residual,
            "eagle_aux_hidden_state_layer_ids": list(config.taps),
        }
    return own | {
        "architectures": ["Eagle3Speculator" if is_third else "EagleSpeculator"],
        "speculators_model_type": algorithm,
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier or None, "architectures": []},
        },
    }
