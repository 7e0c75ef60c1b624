"""Batches of 1 to 50: lengths fixed, lengths learned, and never below plain (BanditSpec, figure 3).

    python -m benchmarks load --part lengths --clock cpu   # each length, and policies that learn it
    python -m benchmarks load --part lengths --clock wall
    python -m benchmarks load --part tasks                 # batches of one task, and of several
    python -m benchmarks load --part scopes --sizes 4 16 64    # what batches teach each other

Batches are drawn from the held-out prompts of the zoo. Every answer is really generated; the clock
is that of the machine, or one that moves by given costs (``clock.py``).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from shared.clock import CLOCKS, on_clock
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise.bench.paired import ratio


class Contestant:
    """A way to decode batches. Costs are remembered from batch to batch, as in a server.

    A policy that a batch shares begins anew with each, and so do the costs that it knows.
    """

    def __init__(self, drafters: Sequence[str] | None, clock: str, **options: Any) -> None:
        self._make = functools.partial(Speculator.from_pretrained, "zoo", drafters, **options)
        self._clock, self._shares = clock, options.get("scope") == "session"
        self._spec, self._now = self._load()

    def _load(self) -> tuple[Speculator, Callable[[], float]]:
        spec = self._make()
        return spec, on_clock(spec, self._clock)

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
    """Figure 3: one drafter at lengths 0 to 4, policies that learn them; ``draftwise`` as it is."""
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


def tasks(clock: str) -> dict[str, Contestant]:
    """MetaSD's table 17: one drafter for everything, specialists chosen by a bandit, and more."""
    return {
        "plain": Contestant([], clock, preset="plain"),
        "generalist x5": Contestant(
            ["zoo:generalist"], clock, preset="banditspec", policy="fixed:0", lengths=[5]
        ),
        "metasd": Contestant(["zoo"], clock, preset="metasd"),
        "draftwise": Contestant(None, clock),
    }


def scopes(clock: str) -> dict[str, Contestant]:
    """The default, learning anew with each request, and with a memory from batch to batch."""
    return {
        "plain": Contestant([], clock, preset="plain"),
        "request": Contestant(None, clock, scope="request"),
        "auto": Contestant(None, clock, scope="auto"),
    }


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


def part_scopes(args: argparse.Namespace) -> dict[str, Any]:
    """Batches of all domains mixed: the default over plain, and what its memory brings."""
    contestants, results = scopes(args.clock), []
    nums = [max(args.batches, args.prompts // size) for size in args.sizes]
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("batches", total=sum(nums) * len(contestants))
        for size, num in zip(args.sizes, nums, strict=True):
            drawn = batches(size, num, 0, list(zoo.prompts()))
            played = race(contestants, drawn, args.tokens, lambda: bar.advance(task))
            row: dict[str, Any] = {"rows": size, "batches": num}
            for one, other in (("request", "plain"), ("auto", "plain"), ("auto", "request")):
                a, b = played[one], played[other]
                found = ratio(a["tokens"], a["seconds"], b["tokens"], b["seconds"])
                row[f"{one} over {other}"] = dataclasses.asdict(found)
            results.append(row)
    return {"clock": args.clock, "scopes": results}


def part_tasks(args: argparse.Namespace) -> dict[str, Any]:
    """Batches whose rows have one task, and batches of as many tasks as rows: over plain."""
    contestants, domains = tasks(args.clock), list(zoo.prompts())
    rng = np.random.default_rng(0)
    table, results = Table("rows", "tasks", *contestants), []
    num = max(args.batches, len(domains))
    with Progress(console=Console(stderr=True)) as bar:
        kinds = [(size, kind) for size in args.sizes for kind in ("one", "several")]
        task = bar.add_task("batches", total=len(kinds) * num * len(contestants))
        for size, kind in kinds:
            drawn = []
            for index in range(num):
                several = rng.choice(domains, min(size, len(domains)), replace=False).tolist()
                own = [domains[index % len(domains)]] if kind == "one" else several
                share = -(-size // len(own))
                drawn.append([t for d in own for t in batches(share, 1, index, [d])[0]][:size])
            played = race(contestants, drawn, args.tokens, lambda: bar.advance(task))
            row: dict[str, Any] = {"rows": size, "tasks": kind}
            for name, own_run in played.items():
                found = ratio(own_run["tokens"], own_run["seconds"],
                              played["plain"]["tokens"], played["plain"]["seconds"])  # fmt: skip
                row[name] = dataclasses.asdict(found)
            results.append(row)
            cells = (f"{row[n]['value']:.2f} ({row[n]['low']:.2f} to {row[n]['high']:.2f})"
                     for n in contestants)  # fmt: skip
            table.add_row(str(size), kind, *cells)
    Console(width=160).print(table)
    return {"clock": args.clock, "tasks": results}


def compare(played: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Every method over plain; learners over the fixed length that was best at this batch size."""

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
    parser.add_argument("--part", choices=["lengths", "tasks", "scopes"], default="lengths")
    parser.add_argument("--clock", choices=[*CLOCKS, "wall"], default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 50])
    parser.add_argument("--prompts", type=int, default=32, help="at each size, at least")
    parser.add_argument("--batches", type=int, default=3, help="at each size, at least")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    parts = {"lengths": part_lengths, "tasks": part_tasks, "scopes": part_scopes}
    save(args.out, parts[args.part](args))


if __name__ == "__main__":
    main()
