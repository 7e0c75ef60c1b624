"""Settings compared at costs that are given, not measured: choices differ, the machine does not.

    python -m benchmarks fixed_costs --setting draftwise --setting draftwise/goodput:mix=false
    python -m benchmarks fixed_costs --setting draftwise --setting metasd --temperature 0.7
    python -m benchmarks fixed_costs --setting plain --setting banditspec//throughput \\
        --drafter lookup --drafter zoo:eagle-generalist --copy
    python -m benchmarks fixed_costs --measure     # what forwards cost here, in CPU time

Every answer is really generated on the zoo, but the engine's clock stands still except for what a
forward is said to cost: A + B T ms for T tokens a row, of the target, of a drafter's model, of an
EAGLE head. Retrieval costs nothing here (its tens of microseconds: ``retrieval.py``). So two
settings differ by what they chose alone, and a run repeats exactly. The defaults are those of one
thread of a quiet machine. Choosing and learning cost nothing here: ``growth.py --part overhead``.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.clock import Priced
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise.bench.paired import ratio
from draftwise.bench.suites import copy_prompts

Cost = tuple[float, float]
"""Milliseconds of a forward, and of each of its tokens."""
HEAD_MS: Cost = (0.5, 0.02)
"""A head's step is 0.06 of verifying five tokens, by ``--measure``."""
COPYING = ("edit", "copy")
"""Domains whose answers repeat their prompt."""


class PricedHead:
    """An EAGLE head whose forwards move the clock."""

    def __init__(self, head: Any, cost: Cost, clock: list[float]) -> None:
        self._head, self._cost, self._clock = head, cost, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def __call__(self, tokens: Any, *more: Any) -> Any:
        """As the head's own."""
        self._clock[0] += 1e-3 * (self._cost[0] + self._cost[1] * tokens.shape[1])
        return self._head(tokens, *more)


def each(cost: Cost) -> Callable[[int, int], float]:
    """The same for any number of rows."""
    return lambda rows, tokens: cost[0] + cost[1] * tokens


def priced(
    setting: str,
    target: Cost,
    drafter: Cost,
    head: Cost = HEAD_MS,
    drafters: Sequence[str] | None = None,
) -> tuple[Speculator, list[float]]:
    """A speculator for ``PRESET[/POLICY[/REWARD[/SCOPE]]]``, and its clock in seconds.

    target, drafter, head: milliseconds of their forwards. drafters: specs, None = the zoo's own.
    """
    preset, policy, reward, scope = (*setting.split("/"), "", "", "")[:4]
    spec = Speculator.from_pretrained(
        "zoo",
        drafters,
        preset=preset,
        policy=policy or None,
        reward=reward or None,
        scope=scope or "request",
    )
    clock = [0.0]
    for loaded in spec.drafters:
        own: Any = loaded
        if hasattr(own, "model"):
            own.model = Priced(own.model, each(drafter), clock)
        elif hasattr(own, "head"):
            own.head = PricedHead(own.head, head, clock)
    model: Any = Priced(spec.target, each(target), clock)
    spec.target = model
    spec._pool = dataclasses.replace(spec._pool, target=model, clock=lambda: clock[0])
    return spec, clock


def play(
    setting: str, prompts: Sequence[str], costs: Sequence[Any], options: dict[str, Any]
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


def over(own: dict[str, Any], base: dict[str, Any], kept: Any = slice(None)) -> list[float]:
    """Tokens a second over the base's, on some of the prompts: the ratio and its 95% interval."""
    parts = (run[key][kept] for run in (own, base) for key in ("tokens", "seconds"))
    found = ratio(*parts)
    return [round(value, 3) for value in (found.value, found.low, found.high)]


def measure(prompts: Sequence[str], options: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What the engine itself measures, in CPU milliseconds: of a draft step, of verifying five."""
    found = {}
    for name in ("generalist", "eagle-generalist"):
        spec = Speculator.from_pretrained(
            "zoo", [f"zoo:{name}"], preset="banditspec", policy="fixed:0"
        )
        spec._pool = dataclasses.replace(spec._pool, clock=time.process_time)
        for prompt in track(prompts, name, console=Console(stderr=True)):
            spec.generate(prompt, **options)
        costs = spec._pool.meter.costs(1, 5, 500)
        step, verify = 1e3 * costs.draft_s[name], 1e3 * float(costs.target_s[-1])
        found[name] = {"step_ms": step, "verify_5_ms": verify, "step_over_verify": step / verify}
    return found


def pair(text: str) -> Cost:
    """``"7.5,0.2"`` as two numbers."""
    once, each = text.split(",")
    return float(once), float(each)


def main() -> None:
    """Play all settings on the same prompts and compare each with the first."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--setting", action="append", help="PRESET[/POLICY[/REWARD[/SCOPE]]]")
    parser.add_argument("--drafter", action="append", help="a spec; default: the zoo's pool")
    parser.add_argument("--target-ms", type=pair, default=(7.5, 0.2), metavar="A,B")
    parser.add_argument("--drafter-ms", type=pair, default=(0.42, 0.02), metavar="A,B")
    parser.add_argument("--head-ms", type=pair, default=HEAD_MS, metavar="A,B")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=4, help="held-out prompts a domain")
    parser.add_argument("--copy", action="store_true", help="also the prompts of domain `copy`")
    parser.add_argument("--also", action="append", default=[], help="a setting to compare with")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--measure", action="store_true", help="print costs, and play nothing")
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    domains = zoo.prompts()
    if args.copy:
        domains["copy"] = copy_prompts(domains["edit"])
    chosen = [(name, text) for name, found in domains.items() for text in found[: args.prompts]]
    labels = np.array([name for name, _ in chosen])
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature}
    if args.measure or not args.setting:
        save(args.out, {"cpu": measure([text for _, text in chosen], options)})
        return
    costs = (args.target_ms, args.drafter_ms, args.head_ms, args.drafter)
    played = {
        name: play(name, [text for _, text in chosen], costs, options) for name in args.setting
    }
    results = {name: _row(name, played, args, labels) for name in played}
    table = Table("setting", "MAT", "tokens/s", "over the first", "95%")
    for name, row in results.items():
        low, high = row["ci95"]
        table.add_row(
            name, f"{row['mat']:.2f}", f"{row['tok_per_s']:.0f}", f"{row['over_first']:.3f}",
            f"{low:.3f} to {high:.3f}",
        )  # fmt: skip
    Console().print(table)
    save(args.out, {"costs_ms": costs[:3], "settings": results})


def _row(
    name: str, played: dict[str, dict[str, Any]], args: argparse.Namespace, labels: Any
) -> dict[str, Any]:
    """One setting's numbers: of all prompts, of each domain, of copying and of the others."""
    own, first = played[name], played[args.setting[0]]
    copies = np.isin(labels, COPYING)
    groups = {str(label): labels == label for label in dict.fromkeys(labels)}
    groups |= {"copying": copies, "others": ~copies}
    value, *ci95 = over(own, first)
    return {
        "tok_per_s": float(own["tokens"].sum() / own["seconds"].sum()),
        "mat": float(own["tokens"].sum() / own["rounds"].sum()),
        "over_first": value,
        "ci95": ci95,
        "by_domain": {label: over(own, first, kept) for label, kept in groups.items()},
        "over": {
            base: {"all": over(own, played[base])}
            | {label: over(own, played[base], groups[label]) for label in ("copying", "others")}
            for base in args.also
        },
    }


if __name__ == "__main__":
    main()
