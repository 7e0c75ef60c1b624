"""The self-check at load: does this model, on our cache, say what a plain forward says?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwise.nn.model import CausalModel
from draftwise.nn.trees import branches
from draftwise.types import DraftwiseError

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 0.1}
"""Largest relative error of a logit; a wrong mask or position gives far more (docs/kv_cache.md)."""

_RECURRENT = (
    "mamba",
    "linear_attention",
    "recurrent",
    "rwkv",
    "conv",
    "ssm",
    "lightning",
    "hybrid",
)


def check_model(model: CausalModel) -> None:
    """Compare ragged, cropped and batched forwards with plain ones on random tokens.

    Source: docs/kv_cache.md. Cost: a few forwards of at most 8 tokens. Raises DraftwiseError for a
    model whose memory cannot be cut back by position (state-space, recurrent, chunked layers); one
    that serves chains but no trees (attention by slot, such as ALiBi) loads, and is marked so.
    """
    refuse_recurrent(model.module.config, model.name)
    try:
        error = _largest_error(model)
    except Exception as cause:
        raise _refusal(model.name, f"it does not run on a ragged KV cache ({cause})") from cause
    tolerance = _TOLERANCE.get(model.dtype, 0.1)
    if not error <= tolerance:
        raise _refusal(
            model.name, f"its logits on a ragged KV cache are off by {error:.2g} (relative)"
        )
    model.serves_trees = _tree_error(model) <= tolerance


def refuse_recurrent(config: Any, name: str) -> None:
    """Raise DraftwiseError for layers that keep a running state; needs the configuration only."""
    config = config.get_text_config()
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    for kind in [*kinds, str(getattr(config, "model_type", ""))]:
        if any(word in str(kind) for word in _RECURRENT):
            raise _refusal(name, f"it has {kind!r} layers, whose state cannot be cut back")


def _refusal(name: str, why: str) -> DraftwiseError:
    return DraftwiseError(
        f"cannot speculate with {name}: {why}. Use a decoder-only attention model (Llama, "
        "Qwen, Mistral, Gemma, GPT-2, ...) with attn_implementation 'sdpa' or 'eager'."
    )


@torch.inference_mode()
def _largest_error(model: CausalModel) -> float:
    """Largest |difference| over the largest |logit|, for two rows of different lengths."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, model.vocab_size, (n,), generator=generator).tolist() for n in (8, 5)]
    cache = model.new_cache(num_rows=2, capacity=16)
    model.extend(cache, [0, 1], [texts[0][:4], texts[1][:2]], keep=1)
    model.extend(cache, [0, 1], [texts[1][:3], texts[0][:3]], keep=1)  # a draft to be rejected
    cache.lengths = [4, 2]
    last = model.extend(cache, [0, 1], [texts[0][4:], texts[1][2:]], keep=3)
    errors = [
        _relative_error(last.last(row, 3), _plain_logits(model.module, text)[-3:])
        for row, text in enumerate(texts)
    ]
    return max(errors)


@torch.inference_mode()
def _tree_error(model: CausalModel) -> float:
    """As above, for a tree of five tokens, two branches of three, behind a text of one."""
    generator = torch.Generator().manual_seed(1)
    text, *fed = torch.randint(0, model.vocab_size, (6,), generator=generator).tolist()
    cache = model.new_cache(num_rows=1, capacity=8)
    model.extend(cache, [0], [[text]], keep=1)
    tree = branches([-1, 0, 0, 1, 2], base=1)
    logits = model.extend(cache, [0], [fed], keep=len(fed), trees=[tree]).block[0]
    paths = {3: (0, 1, 3), 4: (0, 2, 4)}
    errors = [
        _relative_error(
            logits[tip][None], _plain_logits(model.module, [text, *(fed[n] for n in path)])[-1:]
        )
        for tip, path in paths.items()
    ]
    return max(errors)


def _plain_logits(module: Any, text: list[int]) -> Tensor:
    ids = torch.tensor([text], device=module.device)
    logits: Tensor = module(input_ids=ids, use_cache=False).logits
    return logits[0]


def _relative_error(ours: Tensor, plain: Tensor) -> float:
    difference = (ours.float() - plain.float()).abs().max()
    return float(difference / plain.float().abs().max().clamp_min(1e-6))
