"""Settings compared at costs that are given, not measured: choices differ, the machine does not.

    python benchmarks/fixed_costs.py --setting draftwise --setting draftwise/goodput:mix=false
    python benchmarks/fixed_costs.py --setting draftwise --setting metasd --temperature 0.7

Every answer is really generated on the zoo, but the engine's clock stands still except for what a
forward is said to cost: A + B ms for B tokens a row. So two settings differ by what they chose
alone, and a run repeats exactly. The defaults are those of one thread of a quiet machine. Choosing
and learning cost nothing here: see ``growth.py --part overhead``.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from paired import save
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise.bench.paired import ratio

Cost = tuple[float, float]
"""Milliseconds of a forward, and of each of its tokens."""


class Priced:
    """A model whose forwards move a clock that nothing else moves."""

    def __init__(self, model: Any, cost: Cost, clock: list[float]) -> None:
        self._model, self._cost, self._clock = model, cost, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def extend(
        self, cache: Any, rows: Sequence[int], tokens: Any, *more: Any, **options: Any
    ) -> Any:
        """As the model's own."""
        once, each = self._cost
        self._clock[0] += 1e-3 * (once + each * max(len(fed) for fed in tokens))
        return self._model.extend(cache, rows, tokens, *more, **options)


def priced(setting: str, target: Cost, drafter: Cost) -> tuple[Speculator, list[float]]:
    """A speculator for ``PRESET`` or ``PRESET/POLICY``, and its clock in seconds."""
    preset, _, policy = setting.partition("/")
    spec = Speculator.from_pretrained("zoo", preset=preset, policy=policy or None)
    clock = [0.0]
    for loaded in spec.drafters:
        if hasattr(loaded, "model"):
            loaded.model = Priced(loaded.model, drafter, clock)
    model: Any = Priced(spec.target, target, clock)
    spec.target = model
    spec._pool = dataclasses.replace(spec._pool, target=model, clock=lambda: clock[0])
    return spec, clock


def play(
    setting: str, prompts: Sequence[str], costs: tuple[Cost, Cost], options: dict[str, Any]
) -> dict[str, Any]:
    """Seconds, tokens and rounds of each prompt."""
    spec, clock = priced(setting, *costs)
    seconds, tokens, rounds = [], [], []
    for seed, prompt in enumerate(track(prompts, setting, console=Console(stderr=True))):
        before = clock[0]
        stats = spec.generate(prompt, seed=seed, **options).stats
        seconds.append(clock[0] - before)
        tokens.append(stats.num_emitted)
        rounds.append(stats.num_rounds)
    return {"seconds": np.array(seconds), "tokens": np.array(tokens), "rounds": np.array(rounds)}


def pair(text: str) -> Cost:
    """``"7.5,0.2"`` as two numbers."""
    once, each = text.split(",")
    return float(once), float(each)


def main() -> None:
    """Play all settings on the same prompts and compare each with the first."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--setting", action="append", required=True, help="PRESET[/POLICY]")
    parser.add_argument("--target-ms", type=pair, default=(7.5, 0.2), metavar="A,B")
    parser.add_argument("--drafter-ms", type=pair, default=(0.42, 0.02), metavar="A,B")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=4, help="held-out prompts a domain")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    prompts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature}
    played = {
        name: play(name, prompts, (args.target_ms, args.drafter_ms), options)
        for name in args.setting
    }
    first = played[args.setting[0]]
    table = Table("setting", "MAT", "tokens/s", "over the first", "95%")
    results: dict[str, Any] = {}
    for name, own in played.items():
        over = ratio(own["tokens"], own["seconds"], first["tokens"], first["seconds"])
        results[name] = {
            "tok_per_s": float(own["tokens"].sum() / own["seconds"].sum()),
            "mat": float(own["tokens"].sum() / own["rounds"].sum()),
            "over_first": over.value,
            "ci95": [over.low, over.high],
        }
        row = results[name]
        table.add_row(
            name, f"{row['mat']:.2f}", f"{row['tok_per_s']:.0f}", f"{over.value:.3f}",
            f"{over.low:.3f} to {over.high:.3f}",
        )  # fmt: skip
    Console().print(table)
    save(args.out, {"costs_ms": [args.target_ms, args.drafter_ms], "settings": results})


if __name__ == "__main__":
    main()
