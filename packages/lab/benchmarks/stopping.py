"""Where to stop: fixed lengths, TapOut, SpecDec++ and this project's own, at costs that are given.

python -m benchmarks stopping --more --work FOLDER            # greedy, everything
python -m benchmarks stopping --temperature 1 --work FOLDER   # sampled

One drafter of the zoo, and all held-out prompts of a run in one order. Answers are really
generated; forwards are counted and priced afterwards (``fixed_costs.py`` says how), so that a run
repeats exactly. What chooses by price is played again at each price, on a clock that forwards move.
FOLDER keeps what was played, so that a run goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fixed_costs import Cost
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.results import save
from shared.stopping_ways import (
    FIXED,
    HEAD,
    LAGGING,
    TABLE_1,
    Played,
    Way,
    at_costs,
    count,
    main_ways,
    more_ways,
)
from transformers.utils import logging

from draftwise import zoo
from draftwise.bench.paired import ratio

PRICES: dict[str, tuple[Cost, Cost]] = {
    "zoo": ((7.5, 0.2), (0.42, 0.02)),
    "dear": ((7.5, 0.2), (1.5, 0.05)),
}
"""Milliseconds of a forward and of each token, of target and drafter: the zoo's own, and a drafter
a fifth of its target, which is how Llama's 1B and 8B lie."""
TOGETHER = 14
"""Prompts in a batch, where none learns from another."""
BASES = ("plain", "best length", "best rule", "TapOut, UCB1, blend", HEAD, LAGGING, "draftwise")


def prompts(number: int) -> tuple[list[str], list[str]]:
    """Held-out prompts, domain after domain, and the domain of each."""
    chosen = [(d, text) for d, texts in zoo.prompts().items() for text in texts[:number]]
    return [text for _, text in chosen], [domain for domain, _ in chosen]


def play(
    way: Way, texts: Sequence[str], prices: tuple[Cost, Cost] | None, options: dict[str, Any]
) -> list[Played]:
    """Every prompt with a seed of its own; alone where prompts teach each other or a clock runs."""
    spec = way.speculator()
    ids = [spec.tokenizer(text)["input_ids"] for text in texts]
    clock = None if prices is None else at_costs(spec, *prices)
    size = 1 if way.shares or clock is not None else TOGETHER
    found: list[Played] = []
    for first in range(0, len(ids), size):
        rows, before = ids[first : first + size], clock[0] if clock else 0.0
        rounds: list[list[Any]] = [[] for _ in rows]
        for round_ in spec.start(rows, seed=list(range(first, first + len(rows))), **options):
            rounds[round_.request].append(round_)
        found += [
            count(way, own, len(row), options["max_new_tokens"])
            for own, row in zip(rounds, rows, strict=True)
        ]
        if clock is not None:
            found[-1] = dataclasses.replace(found[-1], clock_s=clock[0] - before)
    return found


def check(name: str, way: Way, text: str, options: dict[str, Any]) -> None:
    """What is counted from the rounds of one answer is what the clock says; else an error."""
    prices = PRICES["zoo"]
    [timed] = play(way, [text], prices, options)
    counted = dataclasses.replace(timed, clock_s=0.0).seconds(*prices)
    if not math.isclose(counted, timed.clock_s):
        raise RuntimeError(f"{name}: forwards count {counted} s, the clock says {timed.clock_s} s")


def remembered(path: Path, found: list[Played] | None = None) -> list[Played] | None:
    """What was played before, or None; what is given is kept."""
    if found is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([dataclasses.asdict(played) for played in found]))
    if not path.exists():
        return None
    return [Played(**row) for row in json.loads(path.read_text())]


def play_all(args: argparse.Namespace) -> dict[str, dict[str, list[Played]]]:
    """By price and way, what became of every prompt."""
    texts, _ = prompts(args.prompts)
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature}
    ways = main_ways() | (more_ways() if args.more else {})
    folder = args.work / f"T{args.temperature:g}-{args.prompts}x{args.tokens}"
    played: dict[str, dict[str, list[Played]]] = {price: {} for price in PRICES}
    for name, way in track(ways.items(), console=Console(stderr=True)):
        for price, costs in PRICES.items():
            path = folder / f"{name}{f' @{price}' if way.is_priced else ''}.json"
            found = remembered(path)
            if found is None:
                if not way.is_priced:
                    check(name, way, texts[0], options)
                found = play(way, texts, costs if way.is_priced else None, options)
                remembered(path, found)
            played[price][name] = found
    return played


def compare(played: dict[str, list[Played]], costs: tuple[Cost, Cost], domains: list[str]) -> Any:
    """Each way's speed over some of them, over plain by domain, and the paper's m and %."""
    seconds = {n: np.array([p.seconds(*costs) for p in rows]) for n, rows in played.items()}
    tokens = {n: np.array([float(p.emitted) for p in rows]) for n, rows in played.items()}
    speed = {n: float(tokens[n].sum() / seconds[n].sum()) for n in played}
    best = {
        "best length": max((f"length {k}" for k in FIXED), key=lambda n: speed[n]),
        "best rule": max(TABLE_1, key=lambda n: speed[n]),
    }
    rows: dict[str, Any] = {}
    for name, own in played.items():
        rounds = sum(p.rounds for p in own)
        drafted, accepted = sum(p.drafted for p in own), sum(p.accepted for p in own)
        row: dict[str, Any] = {
            "tok_per_s": round(speed[name], 1),
            "m": round(accepted / rounds, 3),
            "rate": round(accepted / max(drafted, 1), 3),
            "over": {},
            "by_domain": {},
        }
        for base in BASES:
            of = best.get(base, base)
            over = ratio(tokens[name], seconds[name], tokens[of], seconds[of])
            row["over"][base] = [round(x, 3) for x in (over.value, over.low, over.high)]
        for domain in dict.fromkeys(domains):
            at = np.array(domains) == domain
            plain = tokens["plain"][at].sum() / seconds["plain"][at].sum()
            mine = tokens[name][at].sum() / seconds[name][at].sum()
            row["by_domain"][domain] = round(float(mine / plain), 3)
        rows[name] = row
    return {"best": best, "ways": rows}


def show(title: str, found: dict[str, Any]) -> None:
    """One line a way."""
    domains = next(iter(found["ways"].values()))["by_domain"]
    print(f"\n{title}; best: {found['best']}")
    table = Table("way", *domains, "plain", "best length", "best rule", "TapOut", "m", "%")
    for name, row in found["ways"].items():
        over = [row["over"][b] for b in BASES[:4]]
        table.add_row(
            name, *(f"{x:.2f}" for x in row["by_domain"].values()),
            *(f"{v:.3f} ({low:.2f}-{high:.2f})" for v, low, high in over),
            f"{row['m']:.2f}", f"{row['rate']:.2f}",
        )  # fmt: skip
    Console(width=190).print(table)


def main() -> None:
    """Play what was not played, price everything, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps what was played")
    parser.add_argument("--more", action="store_true", help="tuned rules and variants, too")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=8, help="of each domain")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    played = play_all(args)
    _, domains = prompts(args.prompts)
    results = {price: compare(played[price], PRICES[price], domains) for price in PRICES}
    for price, found in results.items():
        show(f"T = {args.temperature:g}, prices: {price}", found)
    save(args.out, {"temperature": args.temperature, "costs_ms": PRICES, "prices": results})


if __name__ == "__main__":
    main()
