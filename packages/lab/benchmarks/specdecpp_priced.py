"""SpecDec++'s plane and speed in one table, at costs that are given: it repeats exactly.

python -m benchmarks specdecpp_priced --work FOLDER                   # greedy
python -m benchmarks specdecpp_priced --work FOLDER --temperature 1

FOLDER is that of ``specdecpp.py --part heads``. Prompts run in batches; their forwards are counted
and priced as in ``stopping.py``, but for the prompt's, which are the same for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fixed_costs import Cost
from rich.console import Console
from rich.table import Table
from shared.results import save
from specdecpp import Scene, contestants, make_field, play
from stopping import PRICES

from draftwise_lab.bench.sweep import numbers as n
from draftwise_lab.bench.sweep.runs import Run, Way


def priced(run: Run, target: Cost, drafter: Cost) -> Run:
    """The same run with the seconds that its forwards cost."""
    of_target = target[0] * run.num_target + target[1] * (run.num_drafted + run.num_target)
    return replace(run, seconds=1e-3 * (of_target + sum(drafter) * run.num_draft_forwards))


def judge(ways: Sequence[Way], runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Rates of each way; at each price its speed over that of the best fixed length."""
    points = {way.name: n.point(way, runs[way.name]) for way in ways}
    frontier = {p.way.name for p in n.frontier(list(points.values()))}
    found: dict[str, Any] = {
        name: {
            "discarded": round(p.discard_rate, 3),
            "verified": round(p.verification_rate, 3),
            "oracle": round(p.oracle_rate, 3),
            "is_on_frontier": name in frontier,
        }
        for name, p in points.items()
    }
    for price, costs in PRICES.items():
        at = {name: [priced(run, *costs) for run in own] for name, own in runs.items()}
        speed = {way.name: n.point(way, at[way.name]).tok_per_s for way in ways}
        base = max((way.name for way in ways if way.is_fixed), key=lambda name: speed[name])
        for name, row in found.items():
            over = [round(x, 3) for x in n.gain(at, name, base)]
            row[price] = {"tok_per_s": round(speed[name], 1), f"over {base}": over}
    return found


def show(title: str, found: dict[str, Any]) -> None:
    """One line a way."""
    cells = {
        price: next(k for k in next(iter(found.values()))[price] if "over" in k) for price in PRICES
    }
    table = Table(
        "way",
        "discarded",
        "verified",
        "frontier",
        *(f"{p}, {b}" for p, b in cells.items()),
        title=title,
    )
    for name, row in found.items():
        speeds = [(row[p]["tok_per_s"], *row[p][base]) for p, base in cells.items()]
        table.add_row(
            name, f"{row['discarded']:.2f}", f"{row['verified']:.3f}",
            "yes" if row["is_on_frontier"] else "",
            *(f"{s:.0f}  {v:.3f} ({low:.3f} to {high:.3f})" for s, v, low, high in speeds),
        )  # fmt: skip
    Console(width=150).print(table)


def main() -> None:
    """Play every way on both sets of prompts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="where heads lie")
    parser.add_argument("--prompts", type=int, default=8, help="of each domain")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--batch", type=int, default=16, help="prompts together")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    scene, found = Scene(args.work), {}
    ways = contestants(args.work)
    for name, prompts in scene.held_out(args.prompts).items():
        runs = play(make_field(scene, ways, args), ways, prompts, 1, args.batch)
        found[name] = judge(ways, runs)
        show(f"{name}, T = {args.temperature:g}", found[name])
    save(args.out, {"temperature": args.temperature, "costs_ms": PRICES, "panels": found})


if __name__ == "__main__":
    main()
