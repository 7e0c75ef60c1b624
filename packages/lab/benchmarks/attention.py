"""Grouped-query attention with and without copies of the cache: milliseconds of verification.

A random Llama of 4 layers (8 query heads, 2 key heads of 64) prefills a context and verifies 8
tokens; the two kinds of attention are interleaved, and medians compared. ``token``: the kernel
alone for one token per row (9 query heads, 3 key heads of 64), with heads grouped by the kernel or
passed as tokens.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from shared.compare import interleaved_ms
from shared.script import run, show
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwise.nn.attention import RAGGED
from draftwise.nn.model import CausalModel

SIZES = ((1, 512), (1, 4000), (4, 700), (8, 2000))
"""Rows and tokens of context."""
NUM_VERIFIED = 8


def model(attention: str) -> CausalModel:
    """The same random weights with another attention function."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=8192,
    )  # fmt: skip
    module = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return CausalModel(module.eval(), attention)


def medians(
    ways: Mapping[str, Callable[[], Any]], repeats: int, times: int = 1
) -> dict[str, float]:
    spent = interleaved_ms(ways, repeats, times)
    return {name: float(np.median(own)) for name, own in spent.items()}


@torch.inference_mode()
def token(args: argparse.Namespace) -> dict[str, Any]:
    rows, dtypes = [], (torch.float32, torch.bfloat16)
    for dtype, num, keys in itertools.product(dtypes, (1, 128), (64, 300)):
        query = torch.randn(num, 9, 1, 64, dtype=dtype)
        key, value = torch.randn(2, num, 3, keys, 64, dtype=dtype)
        ways = {
            "grouped": lambda q=query, k=key, v=value: sdpa(q, k, v, enable_gqa=True),
            "folded": lambda q=query, k=key, v=value: sdpa(q.reshape(len(q), 3, 3, 64), k, v),
        }
        about = {"dtype": str(dtype).removeprefix("torch."), "rows": num, "keys": keys}
        rows.append({**about, **medians(ways, args.repeats, 20)})
    show(rows, "ms")
    return {"token": rows}


@torch.inference_mode()
def verify(args: argparse.Namespace) -> dict[str, Any]:
    models, rows = {name: model(name) for name in ("sdpa", RAGGED)}, []
    for num, context in SIZES:
        every, tokens, logits, ways = list(range(num)), [list(range(NUM_VERIFIED))] * num, {}, {}
        for name, m in models.items():
            cache = m.new_cache(num, context + 2 * NUM_VERIFIED)
            m.extend(cache, every, [[5] * context] * num, 1)

            def way(name: str = name, m: CausalModel = m, cache: Any = cache) -> None:
                cache.lengths = [context] * len(every)  # noqa: B023
                logits[name] = m.extend(cache, every, tokens, NUM_VERIFIED).flat  # noqa: B023

            ways[name] = way
        ms = medians(ways, args.repeats)
        apart = float((logits["sdpa"] - logits[RAGGED]).abs().max())
        ratio = ms["sdpa"] / ms[RAGGED]
        rows.append({"rows": num, "context": context, **ms, "ratio": ratio, "difference": apart})
    show(rows, "ms")
    return {"attention": rows}


if __name__ == "__main__":
    run(__doc__, {"verify": verify, "token": token}, repeats=15)
