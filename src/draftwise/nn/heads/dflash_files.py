"""DFlash heads on disk, in the layout of ``speculators``: strict about every key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.cpu.layout import lay_out
from draftwise.nn.heads.dflash import BlockShape, DFlashHead
from draftwise.nn.heads.eagle import EagleConfig
from draftwise.nn.heads.eagle_files import fill, read_head_weights, rope_of
from draftwise.nn.heads.files import find_folder, read_settings, refuse_other_target
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

KIND = "DFlash head"
_NUMBERS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


def load_dflash_head(source: str | Path, target: CausalModel) -> DFlashHead:
    """A head for this target from a folder or hub id, in the target's dtype and on its device.

    Takes ``speculators``' layout. Embeddings are the target's, whatever lies beside them, and so is
    ``lm_head`` where every token can be drafted. Raises DraftwiseError that names a missing or
    unmatched key, a shape, a variant that is not served (layers that slide), or both sizes where
    the head was made for another target.
    """
    folder = find_folder(str(source), KIND, ["*.safetensors", "*.bin"])
    settings, weights = read_settings(folder, KIND), read_head_weights(folder)
    what = f"{KIND} {folder}"
    if (kind := settings.get("speculators_model_type")) != "dflash":
        raise DraftwiseError(f"{what}: speculators_model_type is {kind!r}, not 'dflash'")
    for name in ("t2d", "embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"):
        weights.pop(name, None)  # they follow from d2t, or are the target's own
    layer = settings.get("transformer_layer_config") or {}
    block = _block(settings, layer, what)
    config = _config(settings, layer, weights, target)
    refuse_other_target(what, config.target_hidden_size, config.vocab_size, target)
    if config.hidden_size != target.hidden_size:
        raise DraftwiseError(
            f"{what} is {config.hidden_size} wide, and its target's embeddings {target.hidden_size}"
        )
    is_whole = config.draft_vocab_size == config.vocab_size and "lm_head.weight" not in weights
    with torch.device("meta"):  # the weights come from the file
        head = DFlashHead(
            config,
            layer["num_hidden_layers"],
            block,
            target.module.get_input_embeddings(),
            target.module.get_output_embeddings() if is_whole else None,
        )
    fill(head, weights, target, what)
    lay_out(head)
    return head.eval().requires_grad_(False)


def _block(settings: Mapping[str, Any], layer: Mapping[str, Any], what: str) -> BlockShape:
    """What a block is; DraftwiseError for numbers that are missing and variants not served."""
    missing = [key for key in _NUMBERS if not isinstance(layer.get(key), int)]
    missing += [key for key in ("block_size", "mask_token_id") if settings.get(key) is None]
    if not settings.get("aux_hidden_state_layer_ids"):
        missing.append("aux_hidden_state_layer_ids")
    if missing:
        raise DraftwiseError(f"{what}: its config.json has no {missing[0]!r}")
    if "sliding_attention" in (layer.get("layer_types") or []):
        raise DraftwiseError(f"{what} has layers that slide, which are not served")
    size, mask = settings["block_size"], settings["mask_token_id"]
    first = 0 if settings.get("sample_from_anchor") else 1
    if size <= first or not 0 <= mask < layer["vocab_size"]:
        raise DraftwiseError(f"{what}: block_size={size} and mask_token_id={mask} make no block")
    return BlockShape(size, mask, first)


def _config(
    settings: Mapping[str, Any],
    layer: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    target: CausalModel,
) -> EagleConfig:
    size, heads = layer["hidden_size"], layer["num_attention_heads"]
    return EagleConfig(
        generation=3,
        hidden_size=size,
        intermediate_size=layer["intermediate_size"],
        num_heads=heads,
        num_kv_heads=layer.get("num_key_value_heads") or heads,
        head_dim=layer.get("head_dim") or size // heads,
        vocab_size=layer["vocab_size"],
        draft_vocab_size=settings.get("draft_vocab_size") or layer["vocab_size"],
        target_hidden_size=settings.get("target_hidden_size") or size,
        taps=tuple(settings["aux_hidden_state_layer_ids"]),
        rope=rope_of(layer, target),
        max_positions=layer.get("max_position_embeddings") or 2048,
        eps=layer.get("rms_norm_eps") or 1e-6,
        act=layer.get("hidden_act") or "silu",
        attention_bias="layers.0.self_attn.q_proj.bias" in weights,
    )
