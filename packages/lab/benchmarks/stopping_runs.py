"""Bandits that prompts share, run after run: how much of their speed is the order of the prompts.

    python -m benchmarks stopping_runs --out benchmarks/results/stopping_runs.json

A run asks all prompts of ``stopping.py`` in an order of its own, with one learner; forwards are
counted and priced as there. The mean over runs of the speed over the best fixed length, with a 95%
interval of that mean over runs; for the lengths the order is of no account.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.claims import half_interval
from shared.results import save
from shared.stopping_ways import Played, main_ways, more_ways
from stopping import PRICES, play, prompts
from transformers.utils import logging

LENGTHS = ("length 2", "length 4", "length 6")
SHARED = ("TapOut, UCB1, blend", "TapOut, UCB1, simple")


def speeds(played: list[Played]) -> dict[str, float]:
    """Tokens a second at each price."""
    tokens = sum(one.emitted for one in played)
    return {p: tokens / sum(one.seconds(*costs) for one in played) for p, costs in PRICES.items()}


def over(runs: list[dict[str, float]], base: dict[str, float], price: str) -> list[float]:
    """Mean of the runs' ratios and its 95% interval."""
    ratios = np.array([run[price] for run in runs]) / base[price]
    mean, half = float(ratios.mean()), half_interval(ratios)
    return [round(x, 3) for x in (mean, mean - half, mean + half)]


def main() -> None:
    """Play the lengths once and the bandits in every order."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8, help="of each domain")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    texts, _ = prompts(args.prompts)
    options = {"max_new_tokens": args.tokens, "temperature": 0.0}
    ways = main_ways() | more_ways()
    asked = [(name, 0) for name in LENGTHS]
    asked += [(name, run) for run in range(args.runs) for name in SHARED]
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in asked}
    for name, run in track(asked, console=Console(stderr=True)):
        order = random.Random(run).sample(texts, len(texts))
        found[name].append(speeds(play(ways[name], order, None, options)))
    best = {p: max(LENGTHS, key=lambda name: found[name][0][p]) for p in PRICES}
    table, rows = Table("way", *(f"{p}, over {best[p]}" for p in PRICES)), dict[str, Any]()
    for name in SHARED:
        rows[name] = {p: over(found[name], found[best[p]][0], p) for p in PRICES}
        table.add_row(name, *(f"{v:.3f} ({a:.3f}-{b:.3f})" for v, a, b in rows[name].values()))
    Console().print(table)
    save(args.out, {"num_runs": args.runs, "costs_ms": PRICES, "best": best, "ways": rows})


if __name__ == "__main__":
    main()
