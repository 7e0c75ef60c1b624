"""Batches of 1 to 50: lengths fixed, lengths learned, and never below plain (BanditSpec, figure 3).

    python benchmarks/load.py --part lengths --clock cpu   # every length, banditspec-load, draftwise
    python benchmarks/load.py --part lengths --clock wall
    python benchmarks/load.py --part tasks                 # batches of one task, and of several

Batches are drawn from the held-out prompts of the zoo. Every answer is really generated; the clock
is that of the machine, or one that moves by what a forward over R rows of T tokens is said to cost
(``CLOCKS``), so that methods differ by what they chose alone, and a run repeats exactly.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from paired import save
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise.bench.paired import ratio

Cost = Callable[[int, int], float]
"""Milliseconds of a forward over so many rows, each of so many tokens."""


def _cpu_target(rows: int, tokens: int) -> float:
    return 7.9 + 0.37 * rows + 0.205 * rows * tokens + 0.9 * (tokens > 1)


def _cpu_drafter(rows: int, tokens: int) -> float:
    return 0.46 + 0.012 * rows + 0.017 * rows * tokens


def _gpu_target(rows: int, tokens: int) -> float:
    return max(14.0, 4.0 + 0.12 * rows * tokens) + 0.02 * rows


def _gpu_drafter(rows: int, tokens: int) -> float:
    return 0.9 + 0.002 * rows * tokens


CLOCKS: dict[str, tuple[Cost, Cost]] = {
    "cpu": (_cpu_target, _cpu_drafter),
    "gpu": (_gpu_target, _gpu_drafter),
}
"""Target and drafter. ``cpu``: least times of the zoo on one quiet thread, 1 to 50 rows of 1 to 9
tokens, fitted to 5%. ``gpu``: assumed; bound by memory up to 83 tokens, by arithmetic beyond."""


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
        self._clock[0] += 1e-3 * self._cost(len(rows), max(len(fed) for fed in tokens))
        return self._model.extend(cache, rows, tokens, *more, **options)


class Contestant:
    """A way to decode batches. Costs are remembered from batch to batch, as in a server.

    A policy that a batch shares begins anew with each, and so do the costs that it knows.
    """

    def __init__(self, drafters: Sequence[str] | None, clock: str, **options: Any) -> None:
        self._make = functools.partial(Speculator.from_pretrained, "zoo", drafters, **options)
        self._clock, self._shares = clock, "scope" in options
        self._spec, self._now = self._load()

    def _load(self) -> tuple[Speculator, Callable[[], float]]:
        spec = self._make()
        if self._clock == "wall":
            return spec, time.perf_counter
        clock, (target, drafter) = [0.0], CLOCKS[self._clock]
        for loaded in spec.drafters:
            if hasattr(loaded, "model"):
                loaded.model = Priced(loaded.model, drafter, clock)
        model: Any = Priced(spec.target, target, clock)
        spec.target = model

        def now() -> float:
            return clock[0]

        spec._pool = dataclasses.replace(spec._pool, target=model, clock=now)
        return spec, now

    def play(self, prompts: Sequence[str], tokens: int) -> tuple[float, int, list[list[int]]]:
        """Seconds, rounds, and the answers' tokens."""
        if self._shares:
            self._spec, self._now = self._load()
        start = self._now()
        generation = self._spec.start(prompts, max_new_tokens=tokens)
        rounds = [round_.round for round_ in generation]
        seconds = self._now() - start
        return seconds, rounds[-1], [result.tokens for result in generation.results()]


def lengths(clock: str) -> dict[str, Contestant]:
    """Figure 3: one drafter at lengths 0 to 4, and who learns which; ``draftwise`` as it comes."""
    one = ["zoo:generalist"]
    found = {"0": Contestant([], clock, preset="plain")}
    for k in (1, 2, 3, 4):
        found[str(k)] = Contestant(one, clock, policy="fixed:0", feedback="bandit", lengths=[k],
                                   preset="banditspec")  # fmt: skip
    learn: dict[str, Any] = {"preset": "banditspec-load", "scope": "session"}
    found["banditspec-load"] = Contestant(one, clock, **learn)
    found["draftwise 0..4"] = Contestant(one, clock, lengths=[1, 2, 3, 4])
    found["draftwise"] = Contestant(None, clock)
    return found


def batches(size: int, num: int, seed: int, domains: Sequence[str]) -> list[list[str]]:
    """Batches of different prompts, all of them from these domains."""
    rng = np.random.default_rng([seed, size])
    prompts = zoo.prompts()
    pool = [prompt for domain in domains for prompt in prompts[domain]]
    return [[pool[i] for i in rng.choice(len(pool), size, replace=False)] for _ in range(num)]


def race(
    contestants: dict[str, Contestant], drawn: Sequence[Sequence[str]], tokens: int, progress: Any
) -> dict[str, dict[str, Any]]:
    """Seconds, rounds and tokens of each contestant on each batch, taking turns."""
    found: dict[str, dict[str, Any]] = {
        name: {"seconds": [], "rounds": [], "tokens": []} for name in contestants
    }
    for prompts in drawn:
        answers = {}
        for name, contestant in contestants.items():
            seconds, rounds, answers[name] = contestant.play(prompts, tokens)
            found[name]["seconds"].append(seconds)
            found[name]["rounds"].append(rounds)
            found[name]["tokens"].append(sum(map(len, answers[name])))
            progress()
        differing = [name for name, own in answers.items() if own != answers[next(iter(answers))]]
        assert not differing, f"not the tokens of plain decoding: {differing}"
    return {name: {k: np.array(v) for k, v in own.items()} for name, own in found.items()}


def part_lengths(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second over plain decoding, and over the best length of each batch size."""
    contestants = lengths(args.clock)
    domains = list(zoo.prompts())
    table = Table("rows", *contestants, "load/best", "0..4/best", "draftwise/plain", "least")
    results = []
    nums = [max(args.batches, args.prompts // size) for size in args.sizes]
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("batches", total=sum(nums) * len(contestants))
        for size, num in zip(args.sizes, nums, strict=True):
            drawn = batches(size, num, 0, domains)
            played = race(contestants, drawn, args.tokens, lambda: bar.advance(task))
            results.append({"rows": size, "batches": num, **compare(played)})
            row = results[-1]
            table.add_row(
                str(size), *(f"{row['over_plain'][name]['value']:.2f}" for name in contestants),
                *(f"{row[key]['value']:.2f} ({row[key]['low']:.2f} to {row[key]['high']:.2f})"
                  for key in ("load_over_best", "own_over_best", "draftwise_over_plain")),
                f"{row['least_over_plain']['draftwise']:.2f}",
            )  # fmt: skip
    Console(width=200).print(table)
    return {"clock": args.clock, "lengths": results}


def compare(played: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Everybody over plain; learners over the fixed length that was best at this batch size."""

    def over(one: str, other: str) -> dict[str, float]:
        a, b = played[one], played[other]
        found = ratio(a["tokens"], a["seconds"], b["tokens"], b["seconds"])
        return dataclasses.asdict(found)

    def speed(name: str) -> float:
        return float(played[name]["tokens"].sum() / played[name]["seconds"].sum())

    best = max((name for name in played if name.isdigit()), key=speed)
    return {
        "tok_per_s": {name: speed(name) for name in played},
        "over_plain": {name: over(name, "0") for name in played},
        "least_over_plain": {
            name: float((played["0"]["seconds"] / own["seconds"]).min())
            for name, own in played.items()
        },
        "best_length": best,
        "load_over_best": over("banditspec-load", best),
        "own_over_best": over("draftwise 0..4", best),
        "draftwise_over_plain": over("draftwise", "0"),
    }


def main() -> None:
    """Run one part and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=["lengths", "tasks"], default="lengths")
    parser.add_argument("--clock", choices=[*CLOCKS, "wall"], default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 50])
    parser.add_argument("--prompts", type=int, default=32, help="at each size, at least")
    parser.add_argument("--batches", type=int, default=3, help="at each size, at least")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    parts = {"lengths": part_lengths}
    save(args.out, parts[args.part](args))


if __name__ == "__main__":
    main()
