"""How time and memory grow: context and batch at 1x, 4x, 16x; the loop's own share of a round.

python -m benchmarks growth --part growth     # tokens/s by context and batch
python -m benchmarks growth --part overhead   # policy and bookkeeping, and Python around the model
python -m benchmarks growth --part memory     # 10,000 tokens on a small random model
python -m benchmarks growth --part pools      # peak memory, one drafter and several
"""

from __future__ import annotations

import argparse
import functools
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shared.results import save
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwise import Speculator, zoo

PRESETS = ("plain", "metasd", "banditspec", "hedgespec", "draftwise")


def part_growth(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second, plain and draftwise, interleaved, at growing context and batch."""
    specs = {p: Speculator.from_pretrained("zoo", preset=p) for p in ("plain", "draftwise")}
    text = "\n".join(prompt for found in zoo.prompts().values() for prompt in found)
    tokens = specs["plain"].tokenizer(text)["input_ids"]
    cases = [(c, 1) for c in (64, 256, 1024)] + [(64, b) for b in (4, 16)]
    table = Table("context", "batch", "plain tok/s", "draftwise tok/s", "ratio")
    rows = []
    for context, batch in cases:
        prompts = [tokens[97 * i : 97 * i + context] for i in range(batch)]
        seconds: dict[str, list[float]] = {name: [] for name in specs}
        for repeat in range(args.repeats + 1):
            for name, spec in specs.items():
                start = time.perf_counter()
                spec.generate(prompts, max_new_tokens=64, ignore_eos=True)
                if repeat:
                    seconds[name].append(time.perf_counter() - start)
        speed = {name: 64 * batch / float(np.median(s)) for name, s in seconds.items()}
        ratio = speed["draftwise"] / speed["plain"]
        rows.append({"context": context, "batch": batch, **speed, "ratio": ratio})
        table.add_row(
            str(context), str(batch), f"{speed['plain']:.0f}", f"{speed['draftwise']:.0f}",
            f"{ratio:.2f}",
        )  # fmt: skip
    Console().print(table)
    return {"growth": rows}


def part_overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Shares of a round: choosing and learning; all Python outside the models' forwards."""
    rows = {}
    table = Table("preset", "ms a round", "policy + bookkeeping", "outside the models")
    prompts = [prompt for found in zoo.prompts().values() for prompt in found[:2]]
    for name in PRESETS:
        spec = Speculator.from_pretrained("zoo", preset=name)
        inside = _count_forwards(spec)
        own = ["choose", "commit", "learn"]
        if not spec.setting.feedback.startswith("panoramic"):  # there it runs the drafters
            own.append("reveal")
        spec.generate(prompts[0], max_new_tokens=32)
        inside[0], start, shares, num_rounds = 0.0, time.perf_counter(), 0.0, 0
        for prompt in prompts:
            stats = spec.generate(prompt, max_new_tokens=args.tokens).stats
            shares += sum(stats.seconds_by_phase[p] for p in own)
            num_rounds += stats.num_rounds
        wall = time.perf_counter() - start
        rows[name] = {
            "ms_per_round": 1e3 * wall / num_rounds,
            "policy_and_bookkeeping": shares / wall,
            "outside_the_models": 1 - inside[0] / wall,
        }
        row = rows[name]
        table.add_row(
            name, f"{row['ms_per_round']:.2f}", f"{row['policy_and_bookkeeping']:.1%}",
            f"{row['outside_the_models']:.1%}",
        )  # fmt: skip
    Console().print(table)
    return {"overhead": rows}


def _count_forwards(spec: Speculator) -> list[float]:
    """Seconds spent in any model's forward, counted from now on."""
    seconds = [0.0]
    models = [spec.target, *(d.model for d in spec.drafters if hasattr(d, "model"))]
    for model in models:
        forward = model.module.forward

        def timed(*args: Any, forward: Any = forward, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = forward(*args, **kwargs)
            seconds[0] += time.perf_counter() - start
            return output

        model.module.forward = functools.wraps(forward)(timed)
    return seconds


def part_memory(args: argparse.Namespace) -> dict[str, Any]:
    """A 10,000-token answer: the cache is allocated once, and memory does not grow after it."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, max_position_embeddings=16384, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    spec = Speculator.from_pretrained(AutoModelForCausalLM.from_config(config), ["lookup"])
    generation = spec.start([1, 2, 3], max_new_tokens=10_000, temperature=1.0)
    seen = []
    for count, _ in enumerate(generation):
        if count % 1000 == 500:
            seen.append(
                {
                    "tokens": len(generation.results()[0].tokens),
                    "cache_mb": generation.num_cache_bytes / 1e6,
                    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
                }
            )
    table = Table("tokens", "KV cache MB", "peak memory MB")
    for row in seen:
        table.add_row(str(row["tokens"]), f"{row['cache_mb']:.1f}", f"{row['peak_mb']:.0f}")
    Console().print(table)
    return {"memory": seen}


POOLS = {
    "head": ["zoo:eagle-generalist"],
    "head, lookup, suffix": ["zoo:eagle-generalist", "lookup", "suffix"],
}
"""BanditSpec's table 2: its draft head alone, and its pool of several ways to draft."""


def part_pools(args: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of a process with one drafter, and with several; each three times."""
    found: dict[str, list[float]] = {name: [] for name in POOLS}
    for _ in range(3):
        for name, drafters in POOLS.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as one:
                found[name].append(one.submit(peak_mb, drafters, args.tokens).result())
    means = {name: float(np.mean(peaks)) for name, peaks in found.items()}
    alone, several = means.values()
    return {"peak_mb": found, "several_over_one": several / alone}


def peak_mb(drafters: list[str], tokens: int) -> float:
    """Of this process, once it has answered a prompt of each domain."""
    spec = Speculator.from_pretrained("zoo", drafters, preset="banditspec")
    for own in zoo.prompts().values():
        spec.generate(own[0], max_new_tokens=tokens)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    """Run one part and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=["growth", "overhead", "memory", "pools"], required=True)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = {
        "growth": part_growth,
        "overhead": part_overhead,
        "memory": part_memory,
        "pools": part_pools,
    }
    save(args.out, parts[args.part](args))


if __name__ == "__main__":
    main()
