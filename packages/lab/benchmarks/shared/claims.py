"""What the scripts of the papers' claims share: play labels in a world, print rows, write JSON.

A row is a dict with ``claim``, ``here``, ``paper`` and ``ci95`` (half a 95% interval over texts,
which are drawn anew for each seed; every policy begins anew with each text).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from shared.results import save

from draftwise.types import Floats
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments import Environment
from draftwise_lab.sim.environments.iid import IndependentAlphas
from draftwise_lab.sim.hindsight import fixed_path
from draftwise_lab.sim.play import Reference, play
from draftwise_lab.sim.presets import Setting
from draftwise_lab.sim.run import Outcome, best_plans, look_back, policy_seed, run_match
from draftwise_lab.sim.setup import make_match
from draftwise_lab.sim.summary import results
from draftwise_lab.sim.tables import METASD_LENGTH, alpha_of

Row = dict[str, Any]


def options(doc: str | None, parts: Sequence[str]) -> argparse.Namespace:
    """What every script of claims takes."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--part", action="append", choices=parts, default=[], help="default: all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    found = parser.parse_args()
    found.part = found.part or list(parts)
    return found


def played(
    world: Environment, labels: Sequence[str], seeds: int, *, lengths: Sequence[int], tokens: int,
    rules: Sequence[str] = ("fixed",),
) -> dict[tuple[str, str], Row]:  # fmt: skip
    """``draftwise simulate``'s results by domain and policy."""
    setting = Setting("claim", lambda _: world, tuple(lengths), tuple(labels), tokens, tuple(rules))
    match = make_match(setting, list(labels))
    outcome: Outcome = run_match(match, range(seeds))
    return {(row["domain"], row["policy"]): row for row in results(match, outcome)}


def switches(
    world: Environment, labels: Sequence[str], seeds: int, *, length: int, tokens: int
) -> dict[str, tuple[Floats, Floats]]:
    """By policy, of each seed: rounds above the best plan's, and how often the drafter changed."""
    setting = Setting("claim", lambda _: world, (length,), tuple(labels), tokens)
    match = make_match(setting, list(labels))
    found: dict[str, list[tuple[float, float]]] = {label: [] for label in labels}
    for seed in range(seeds):
        best = best_plans(match, look_back(match, seed))
        for domain, text in match.texts(seed):
            for one in match.contestants:
                ends, _ = fixed_path(text, best[domain, one.label][0], {})
                stream = policy_seed(seed, text.name, one.label)
                rows = list(play(text, one, world.costs, Reference(ends, 0), stream, {}))
                changed = np.diff([row["plan_index"] for row in rows]) != 0
                found[one.label].append((rows[-1]["regret"], changed.sum()))
    return {label: tuple(np.array(pairs, float).T) for label, pairs in found.items()}


def half_interval(values: Floats) -> float:
    """Half of the 95% interval of a mean."""
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values)))


def from_speedups(rows: Mapping[str, Sequence[float]], overhead: float, names: str) -> Environment:
    """Drafters whose speedups a table prints: MAT = speedup x overhead, alphas i.i.d."""
    means = {
        task: {
            f"{names}{i}": alpha_of(max(1.0, speedup * overhead), METASD_LENGTH)
            for i, speedup in enumerate(speedups, 1)
        }
        for task, speedups in rows.items()
    }
    costs = CostTable({1: (1.0,)}, other_s=(overhead - 1.0) / METASD_LENGTH)
    return IndependentAlphas(means, costs)


def report(parts: Mapping[str, Callable[[int], list[Row]]], chosen: argparse.Namespace) -> None:
    """Run the chosen parts, print each as a table, and write all of it."""
    found = {}
    for name in chosen.part:
        found[name] = parts[name](chosen.seeds)
        keys = list(dict.fromkeys(key for row in found[name] for key in row))
        table = Table(*keys, title=name)
        for row in found[name]:
            table.add_row(*(_cell(row.get(key)) for key in keys))
        Console(width=200).print(table)
    rounded = {name: [_rounded(row) for row in rows] for name, rows in found.items()}
    save(chosen.out, {"seeds": chosen.seeds, **rounded})


def _rounded(row: Row) -> Row:
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, (float, np.floating)) else str(value)
