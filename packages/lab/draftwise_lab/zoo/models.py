"""Freshly initialised Llamas: made, deepened without changing their function, and written."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM


def make_llama(
    *,
    vocab_size: int,
    num_layers: int,
    hidden_size: int = 128,
    intermediate_size: int = 352,
    head_dim: int = 32,
    max_position_embeddings: int = 2048,
    token_ids: dict[str, int] | None = None,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A freshly initialised Llama with tied embeddings, in float32.

    `token_ids` holds `bos_token_id`, `eos_token_id` and `pad_token_id`.
    """
    heads = hidden_size // head_dim
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=True,
        initializer_range=0.05,
        **(token_ids or {}),
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    _shrink_outputs(model, (2 * num_layers) ** -0.5)
    return model


def _outputs(layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    return layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight  # type: ignore[union-attr, return-value]


def _shrink_outputs(model: LlamaForCausalLM, factor: float) -> None:
    # The residual stream of a deep model must not grow with its depth (GPT-2's initialisation).
    with torch.no_grad():
        for layer in model.model.layers:
            for weight in _outputs(layer):
                weight.mul_(factor)


def deepen(model: LlamaForCausalLM, factor: int) -> LlamaForCausalLM:
    """A model of `factor` times the layers that computes the same function.

    After every layer stand `factor - 1` copies whose output projections are zero, so training
    continues at the same loss; the copies learn from the first step on.
    """
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = model.config.num_hidden_layers * factor
    config.layer_types = None
    deep = LlamaForCausalLM(config)
    deep.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(model.model.norm.state_dict())
    for index, layer in enumerate(deep.model.layers):
        layer.load_state_dict(model.model.layers[index // factor].state_dict())
        if index % factor:
            with torch.no_grad():
                for weight in _outputs(layer):
                    weight.zero_()
    return deep


def pack(model: LlamaForCausalLM, folder: Path) -> None:
    """Write `model` as a Hugging Face folder: half-precision weights that load as float32."""
    half = copy.deepcopy(model).to(torch.float16)
    half.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def cross_entropy(model: nn.Module, tokens: Tensor) -> Tensor:
    """Next-token loss on `tokens` [B, T], in nats a token."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
