"""Shared by the scripts on the papers' claims: simulate labels, print and save rows.

A row is a dict with ``claim``, ``here``, ``paper`` and ``ci95`` (half a 95% interval over texts,
which are redrawn for each seed; every policy starts from scratch with each text).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared.results import save
from shared.script import options, rounded, show

from draftwise_lab.sim.environments import Environment
from draftwise_lab.sim.match import make_match, results, run_match
from draftwise_lab.sim.presets import Setting

Row = dict[str, Any]


def report(doc: str | None, parts: Mapping[str, Callable[[int], list[Row]]]) -> None:
    """Run the chosen parts, print each as a table, and save them."""
    some = {"action": "append", "choices": list(parts), "help": "repeatable; default: all"}
    args = options(doc, part=some, seeds=20)
    found = {}
    for name in args.part or parts:
        found[name] = rounded(parts[name](args.seeds), 3)
        show(found[name], name)
    save(args.out, {"seeds": args.seeds, **found})


def regret_of(row: Row, name: str) -> Row:
    """The regret under the key ``name``, and half its interval."""
    return {name: row["regret"], f"{name} ci": row["regret_ci95"]}


def played(
    world: Environment, labels: Sequence[str], seeds: int, *, lengths: Sequence[int],
    tokens: int,
) -> dict[tuple[str, str], Row]:  # fmt: skip
    """Results of ``draftwise simulate`` by domain and policy."""
    setting = Setting("claim", lambda _: world, tuple(lengths), tuple(labels), tokens)
    match = make_match(setting, list(labels))
    rows = results(match, run_match(match, range(seeds)))
    return {(row["domain"], row["policy"]): row for row in rows}
