"""Attention of grouped heads with and without copies of the cache: a verifying forward in ms.

python -m benchmarks attention
python -m benchmarks attention --part token

A random Llama of 4 layers (8 query heads, 2 key heads of 64) reads a context and then verifies 8
tokens; the two kinds of attention take turns, and medians are compared. ``token``: the kernel alone
for one token a row (9 query heads, 3 key heads of 64), grouped by the kernel or fed as tokens.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shared.results import save
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwise.nn.attention import RAGGED
from draftwise.nn.model import CausalModel

SIZES = ((1, 512), (1, 4000), (4, 700), (8, 2000))
"""Rows and tokens of context."""
NUM_VERIFIED = 8


def model(attention: str) -> CausalModel:
    """The same random weights with another attention."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=8192,
    )  # fmt: skip
    module = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return CausalModel(module.eval(), attention)


@torch.inference_mode()
def part_token(repeats: int) -> list[dict[str, Any]]:
    """Processor time of one token's attention, in ms, by precision, rows and keys."""
    table, found = Table("precision", "rows", "keys", "grouped, ms", "fed as tokens, ms"), []
    for dtype, rows, keys in itertools.product(
        (torch.float32, torch.bfloat16), (1, 128), (64, 300)
    ):
        query = torch.randn(rows, 9, 1, 64, dtype=dtype)
        key, value = torch.randn(2, rows, 3, keys, 64, dtype=dtype)
        ways = {
            "grouped": lambda q=query, k=key, v=value: sdpa(q, k, v, enable_gqa=True),
            "folded": lambda q=query, k=key, v=value: sdpa(q.reshape(len(q), 3, 3, 64), k, v),
        }
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats + 1):
            for name, way in ways.items():
                start = time.process_time()
                for _ in range(20):
                    way()
                spent[name].append(50 * (time.process_time() - start))
        ms = {name: float(np.median(times[1:])) for name, times in spent.items()}
        kind = str(dtype).removeprefix("torch.")
        found.append({"dtype": kind, "rows": rows, "keys": keys, **ms})
        table.add_row(kind, str(rows), str(keys), *(f"{one:.2f}" for one in ms.values()))
    Console().print(table)
    return found


@torch.inference_mode()
def main() -> None:
    """Time both at every size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=("verify", "token"), default="verify")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.part == "token":
        save(args.out, {"token": part_token(args.repeats)})
        return
    models = {name: model(name) for name in ("sdpa", RAGGED)}
    table = Table("rows", "context", "sdpa, ms", "grouped, ms", "ratio", "largest difference")
    rows: list[dict[str, Any]] = []
    for num_rows, context in SIZES:
        everyone, tokens = list(range(num_rows)), [list(range(NUM_VERIFIED))] * num_rows
        caches = {
            name: m.new_cache(num_rows, context + 2 * NUM_VERIFIED) for name, m in models.items()
        }
        for name, m in models.items():
            m.extend(caches[name], everyone, [[5] * context] * num_rows, 1)
        seconds: dict[str, list[float]] = {name: [] for name in models}
        logits = {}
        for _ in range(args.repeats):
            for name, m in models.items():
                caches[name].lengths = [context] * num_rows
                start = time.perf_counter()
                logits[name] = m.extend(caches[name], everyone, tokens, NUM_VERIFIED).flat
                seconds[name].append(time.perf_counter() - start)
        ms = {name: 1e3 * float(np.median(times)) for name, times in seconds.items()}
        apart = float((logits["sdpa"] - logits[RAGGED]).abs().max())
        rows.append({"rows": num_rows, "context": context, **ms, "difference": apart})
        table.add_row(
            str(num_rows), str(context), *(f"{value:.1f}" for value in ms.values()),
            f"{ms['sdpa'] / ms[RAGGED]:.2f}", f"{apart:.0e}",
        )  # fmt: skip
    Console().print(table)
    save(args.out, {"attention": rows})


if __name__ == "__main__":
    main()
