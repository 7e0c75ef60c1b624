"""Tiny random models, made without downloads, with fixed seeds and text without loops."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from draftwise.nn.attention import RAGGED, attend_raggedly

VOCAB = 64

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "qwen3": lambda: Qwen3Config(**SMALL),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        bos_token_id=None,
        eos_token_id=None,
    ),
    "mistral-sliding": lambda: MistralConfig(**SMALL, sliding_window=12),
    "gemma3-mixed": lambda: Gemma3TextConfig(
        **{**SMALL, "num_hidden_layers": 3},
        sliding_window=12,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
}


def byte_level(special: Sequence[str]) -> Tokenizer:
    """A tokenizer of single bytes and special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    return made


def tiny_model(kind: str = "llama", seed: int = 0, attention: str = "sdpa", **changes: Any) -> Any:
    """A random model with large q, k and sharp logits: its greedy text does not loop at once."""
    torch.manual_seed(seed)
    config = CONFIGS[kind]()
    for name, value in changes.items():
        setattr(config, name, value)
    is_ragged = attention == RAGGED
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa" if is_ragged else attention
    )
    if is_ragged:
        attend_raggedly(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "c_attn")):
                parameter.normal_(0, 0.12)
            elif "lm_head" in name or "embed" in name or "wte" in name:
                parameter.normal_(0, 0.3)
    return model.eval()


@cache
def head_home(hidden_size: int = 32, num_layers: int = 2) -> Path:
    """A drafter's folder with a random acceptance head whose predictions vary between states."""
    from draftwise_lab.train.head import AcceptanceHead, save

    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = AcceptanceHead(hidden_size, num_layers)
        with torch.no_grad():
            for weights in head.parameters():
                weights.mul_(3.0)
    home = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, home)
    save(head, home / "head")
    return home


def near_copy(model: Any, noise: float, seed: int = 1) -> Any:
    """A drafter that agrees with ``model`` often but not always: the same weights plus noise."""
    import copy

    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            scale = noise * float(parameter.std()) if parameter.numel() > 1 else 0.0
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return twin.eval()
