"""Writes EAGLE heads, in the layout of their authors or of vLLM's ``speculators``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftwise.checks import known
from draftwise.nn.eagle import EagleConfig, EagleHead
from draftwise.nn.eagle_files import LENT, LLAMA, TAPS
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
    """Write an EAGLE-3 head's ``config.json`` and ``model.safetensors``, without borrowed modules,
    except that ``speculators`` needs the rows of ``lm_head`` if the head uses only some of them.

    layout: ``authors`` (SafeAILab/EAGLE) or ``speculators`` (vLLM). dtype: of the stored weights,
    None = as they are. verifier: the target's name, for vLLM. Raises DraftwiseError for an unknown
    layout.
    """
    known("layout", layout, LAYOUTS)
    config = head.config
    if config.generation != 3:
        raise DraftwiseError("EAGLE-1 heads can be read, and not written: train an EAGLE-3 head")
    layer = "midlayer." if layout == "authors" else "layers.0."
    weights = {
        re.sub(r"^midlayer\.", layer, name): tensor for name, tensor in head.state_dict().items()
    }
    settings = _settings(config, layout, verifier)
    if head.lent_rows is not None and layout == "authors":
        settings[LENT] = True
    elif head.lent_rows is not None:
        weights["lm_head.weight"] = head.lent_rows.get_parameter("weight")
    copies = {
        name: tensor.detach().to(dtype if tensor.is_floating_point() else None).clone().contiguous()
        for name, tensor in weights.items()
    }
    if head.draft_ids is not None:
        copies["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        copies["t2d"][head.draft_ids.cpu()] = True
    folder.mkdir(parents=True, exist_ok=True)
    save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, "utf-8")


def _settings(config: EagleConfig, layout: str, verifier: str) -> dict[str, Any]:
    layer = {
        **{name: getattr(config, name) for name in LLAMA},
        "model_type": "llama",
        "num_hidden_layers": 1,
        "rope_parameters": config.rope_parameters,
        "rope_theta": config.rope_parameters["rope_theta"],  # where transformers 4 looks
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": False,
    }
    names = ("draft_vocab_size", "target_hidden_size", "norm_before_residual")
    own: dict[str, Any] = {name: getattr(config, name) for name in names}
    if layout == "authors":
        # layers whose output is tapped, not their input: see ``nn.eagle_files``
        own["eagle_config"] = {TAPS: [tap - 1 for tap in config.taps]}
        return layer | own | {"architectures": ["LlamaForCausalLMEagle3"]}
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 5,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return own | {
        TAPS: list(config.taps),
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier or None, "architectures": []},
        },
    }
