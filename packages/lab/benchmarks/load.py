"""Batches of 1 to 50: fixed lengths, learnt lengths, never below plain (BanditSpec, figure 3).

Batches are drawn from the zoo's held-out prompts. Every answer is generated; the clock is the
machine's, or one that advances by given costs (``shared/clock.py``).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from shared.clock import CLOCKS, on_clock
from shared.script import run, show, track

from draftwise import Speculator, zoo
from draftwise.bench.results import ratio

Played = dict[str, dict[str, Any]]
"""By contestant [batches]: seconds, tokens."""


class Contestant:
    """A way to decode batches. Costs are kept from batch to batch, as in a server; a policy that a
    batch shares starts from scratch with each batch, and so does its cost model."""

    def __init__(self, clock: str, drafters: Sequence[str] | None, **options: Any) -> None:
        self._make = functools.partial(Speculator.from_pretrained, "zoo", drafters, **options)
        self._clock, self._shares = clock, options.get("scope") == "session"
        self._spec = self._make()
        self._now = on_clock(self._spec, clock)

    def play(self, prompts: Sequence[str], tokens: int) -> tuple[float, list[list[int]]]:
        """Seconds, and the tokens of the answers."""
        if self._shares:
            self._spec = self._make()
            self._now = on_clock(self._spec, self._clock)
        start = self._now()
        results = self._spec.generate(list(prompts), max_new_tokens=tokens)
        return self._now() - start, [list(result.tokens) for result in results]


def batches(size: int, num: int, seed: int, domains: Sequence[str]) -> list[list[str]]:
    """Batches of distinct prompts from these domains."""
    rng, prompts = np.random.default_rng([seed, size]), zoo.prompts()
    pool = [prompt for domain in domains for prompt in prompts[domain]]
    return [[pool[i] for i in rng.choice(len(pool), size, replace=False)] for _ in range(num)]


def race(contestants: dict[str, Contestant], drawn: Sequence[Sequence[str]], tokens: int) -> Played:
    """Seconds and tokens of each contestant on each batch, interleaved."""
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in contestants}
    for prompts in track(drawn, f"{len(drawn[0])} rows"):
        plain = None
        for name, contestant in contestants.items():
            seconds, answers = contestant.play(prompts, tokens)
            plain = plain or answers
            assert answers == plain, f"not the tokens of plain decoding: {name}"
            found[name].append((seconds, sum(map(len, answers))))
    return {
        n: dict(zip(("seconds", "tokens"), np.array(v).T, strict=True)) for n, v in found.items()
    }


def over(played: Played, one: str, other: str) -> dict[str, float]:
    """Tokens per second relative to another contestant, with the interval."""
    a, b = played[one], played[other]
    return dataclasses.asdict(ratio(a["tokens"], a["seconds"], b["tokens"], b["seconds"]))


def lengths(args: argparse.Namespace) -> dict[str, Any]:
    """One drafter at lengths 0 to 4, and policies that learn them, relative to plain and to the
    best."""
    make = functools.partial(Contestant, args.clock)
    one, fixed = ["zoo:generalist"], {"policy": "fixed:0", "feedback": "bandit"}
    contestants = {"0": make([], preset="plain")}
    contestants |= {
        str(k): make(one, preset="banditspec", lengths=[k], **fixed) for k in range(1, 5)
    }
    contestants["banditspec-load"] = make(one, preset="banditspec-load", scope="session")
    contestants["draftwise 0..4"] = make(one, lengths=[1, 2, 3, 4])
    contestants["draftwise"] = make(None)
    rows = []
    for size in args.sizes:
        num = max(args.batches, args.prompts // size)
        played = race(contestants, batches(size, num, 0, list(zoo.prompts())), args.tokens)
        speed = {n: float(own["tokens"].sum() / own["seconds"].sum()) for n, own in played.items()}
        best = max((name for name in played if name.isdigit()), key=lambda name: speed[name])
        plain = played["0"]["seconds"]
        least = {name: float((plain / own["seconds"]).min()) for name, own in played.items()}
        rows.append({
            "rows": size, "batches": num, "best_length": best,
            "over_plain": {name: over(played, name, "0") for name in played},
            "load_over_best": over(played, "banditspec-load", best),
            "own_over_best": over(played, "draftwise 0..4", best),
            "draftwise_over_plain": over(played, "draftwise", "0"),
            "least": least["draftwise"], "tok_per_s": speed, "least_over_plain": least,
        })  # fmt: skip
    show(rows)
    return {"clock": args.clock, "lengths": rows}


def tasks(args: argparse.Namespace) -> dict[str, Any]:
    """MetaSD's table 17: batches of one task, and of one task per row, relative to plain."""
    make, domains, rows = functools.partial(Contestant, args.clock), list(zoo.prompts()), []
    one = {"preset": "banditspec", "policy": "fixed:0", "lengths": [5]}
    contestants = {
        "plain": make([], preset="plain"), "generalist x5": make(["zoo:generalist"], **one),
        "metasd": make(["zoo"], preset="metasd"), "draftwise": make(None),
    }  # fmt: skip
    rng, num = np.random.default_rng(0), max(args.batches, len(domains))
    for size in args.sizes:
        for kind in ("one", "several"):
            drawn = []
            for index in range(num):
                several = rng.choice(domains, min(size, len(domains)), replace=False).tolist()
                own = [domains[index % len(domains)]] if kind == "one" else several
                share = -(-size // len(own))
                drawn.append([t for d in own for t in batches(share, 1, index, [d])[0]][:size])
            played = race(contestants, drawn, args.tokens)
            ratios = {name: over(played, name, "plain") for name in contestants}
            rows.append({"rows": size, "tasks": kind, **ratios})
    show(rows)
    return {"clock": args.clock, "tasks": rows}


if __name__ == "__main__":
    run(
        __doc__, {"lengths": lengths, "tasks": tasks}, sizes=[1, 2, 4, 8, 16, 50], tokens=96,
        clock={"choices": [*CLOCKS, "wall"], "default": "cpu"},
        prompts={"type": int, "default": 32, "help": "at each size, at least"},
        batches={"type": int, "default": 3, "help": "at each size, at least"},
    )  # fmt: skip
