"""Writing EAGLE heads as others read them: the authors' layout, or that of ``speculators``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwise.nn.eagle import EagleConfig, EagleHead
from draftwise.nn.eagle_files import LENT
from draftwise.types import DraftwiseError

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
