"""Randomly initialised Llamas that can copy and be deepened, and their checkpoints.

A model that completes `A B ... A` with `B` needs two cooperating attention layers: one that copies
each token's identity to the next position, and one that attends to the copies of the current token.
By gradient descent alone, small models learn this circuit too late, and until then they ignore
their prompt. `prime_copying` installs both layers; training refines and spreads the circuit.
"""

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
    token_ids: dict[str, int] | None = None,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A randomly initialised Llama with tied embeddings, in float32. `token_ids` holds
    `bos_token_id`, `eos_token_id` and `pad_token_id`."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // head_dim,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.05,
        **(token_ids or {}),
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    # Keep the residual stream from growing with the model's depth (GPT-2's initialisation).
    with torch.no_grad():
        for layer in model.model.layers:
            for weight in _outputs(layer):
                weight.mul_((2 * num_layers) ** -0.5)
    return model


def _outputs(layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    return layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight  # type: ignore[union-attr, return-value]


def deepen(model: LlamaForCausalLM, factor: int) -> LlamaForCausalLM:
    """Return a model with `factor` times the layers that computes the same function. Each layer is
    followed by `factor - 1` copies whose output projections are zero, so training continues at the
    same loss and the copies learn from the first step."""
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
    """Write `model` as a Hugging Face checkpoint: float16 weights that load as float32."""
    half = copy.deepcopy(model).to(torch.float16)
    half.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def cross_entropy(model: nn.Module, tokens: Tensor) -> Tensor:
    """Next-token loss on `tokens` [B, T], in nats per token."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


_SLOW_RADIANS = 0.02  # frequencies below this hardly rotate within a hundred tokens
_NUM_FAST = 5  # frequencies that distinguish a token's neighbours
_NEAR = 9.0  # sharpness of the previous-token heads, in logits per frequency
_MATCH = 30.0  # sharpness of the matching heads, in logits for a perfect match
_EMBEDDING = 0.2  # standard deviation; large, so that optimizer steps do not swamp the circuit
_ANSWER = 2.0  # weight of the identity at the match relative to the token's


@torch.no_grad()
def prime_copying(model: LlamaForCausalLM, *, seed: int, matchers: tuple[int, ...]) -> None:
    """Install a previous-token layer in layer 0 and matching heads in the layers `matchers`.

    The hidden dimensions start as three parts: a token's identity, the identity of the previous
    token (written by layer 0), and a constant that makes layer 0's queries and keys depend on
    position alone. The heads of `matchers` compare the first part with the second of earlier
    positions and add the identity at the match to the first. This only initialises: every weight is
    trained. Source: Olsson et al. 2022, "In-context learning and induction heads" (the circuit);
    Trockman and Kolter 2023, "Mimetic initialization of self-attention layers" (the
    initialisation). Errors: ValueError unless each query head has a key head and the hidden size is
    a multiple of twice their number.
    """
    config = model.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.num_key_value_heads != heads or hidden % (2 * heads):
        raise ValueError("copying needs one key head for every query head of hidden/heads dims")
    generator = torch.Generator().manual_seed(seed)
    size = hidden // heads
    theta = config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    part = hidden // 2 - hidden // 32
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0.0, 0.1 * _EMBEDDING, generator=generator)
    embedding[:, :part].normal_(0.0, _EMBEDDING, generator=generator)
    embedding[:, 2 * part :] = 1.75 * _EMBEDDING
    # The LM head shares the scaled-up embedding; a small final norm keeps the first logits small.
    model.model.norm.weight.fill_(0.25)
    _previous_token(model, theta, part)
    for index in matchers:
        _matching(model, index, theta, part, generator)


def _previous_token(model: LlamaForCausalLM, theta: Tensor, part: int) -> None:
    """Layer 0: constant queries and keys whose rotary product peaks one token back."""
    attention = model.model.layers[0].self_attn
    hidden, half = model.config.hidden_size, len(theta)
    heads = hidden // (2 * half)
    query, key = torch.zeros(2 * half), torch.zeros(2 * half)
    fast = torch.arange(_NUM_FAST)
    query[fast], query[fast + half] = theta[fast].cos(), -theta[fast].sin()
    key[fast] = 1.0
    common = torch.zeros(hidden)
    common[2 * part :] = 1.0 / (hidden - 2 * part)  # the normalised constant is about 2.1
    gain = (_NEAR * (2 * half) ** 0.5) ** 0.5 / 2.1
    for weight, vector in ((attention.q_proj.weight, query), (attention.k_proj.weight, key)):
        weight[: hidden // 2] = gain * torch.outer(vector.repeat(heads // 2), common)
    place = torch.arange(part)
    attention.v_proj.weight[place] = 0.0
    attention.v_proj.weight[place, place] = 0.5
    attention.o_proj.weight[:, place] = 0.0
    attention.o_proj.weight[part + place, place] = 2 * _EMBEDDING * 0.8


def _matching(
    model: LlamaForCausalLM, index: int, theta: Tensor, part: int, generator: torch.Generator
) -> None:
    """Layer `index`: queries from the token itself, keys from the copy of the previous token."""
    attention = model.model.layers[index].self_attn
    hidden, half = model.config.hidden_size, len(theta)
    slow = (theta < _SLOW_RADIANS).float()
    keep = torch.cat([slow, slow]).repeat(hidden // (2 * half))[:, None]
    probes = keep * torch.randn(hidden, part, generator=generator) / part**0.5
    gain = (_MATCH * (2 * half) ** 0.5 / (2 * float(slow.sum()))) ** 0.5
    attention.q_proj.weight[:, :part] += gain * probes
    attention.k_proj.weight[:, part : 2 * part] += gain * probes
    place = torch.arange(part)
    for start in (0, hidden // 2):  # two heads carry the identity, the other two a second copy
        attention.v_proj.weight[start + place] *= 0.2
        attention.v_proj.weight[start + place, place] += 0.5
        attention.o_proj.weight[place, start + place] += _ANSWER * _EMBEDDING
