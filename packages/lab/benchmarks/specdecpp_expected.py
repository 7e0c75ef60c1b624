"""Acceptance heads compared without chance: expected tokens a second over drafts from many places.

python -m benchmarks specdecpp_expected --work FOLDER  # after specdecpp.py --part heads

From random places of the target's answers to held-out prompts the drafter goes on for 16 tokens.
With min(1, p/q) of each, what a draft of n tokens emits is known in expectation, so heads,
thresholds and lengths differ only by where they stop; seconds are those of forwards measured here.
Each head is shown at its best threshold of 49, which favours all of them alike; places are random,
not the beginnings of rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shared.results import save
from specdecpp import LENGTHS, Scene

from draftwise.train.head import Chains, draft_chains, load
from draftwise.train.speedup import MAX_LENGTH, measure_costs
from draftwise.types import Costs

THRESHOLDS = np.linspace(0.02, 0.98, 49)
BASE = "sampled-D3-w6-s0"


class Places:
    """Drafts, and what drafting n tokens at each place gives and costs."""

    def __init__(self, chains: Chains, costs: Costs) -> None:
        self.hidden = chains.hidden
        alive = chains.truth.double().numpy().cumprod(1)
        self._emitted = 1 + np.concatenate([np.zeros((len(alive), 1)), alive.cumsum(1)], axis=1)
        (draft_s,) = costs.draft_s.values()
        self._seconds = costs.target_s + draft_s * np.arange(MAX_LENGTH + 1)
        self._draft_s = draft_s

    def play(self, lengths: np.ndarray, in_vain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n] expected tokens and seconds of a round at each place."""
        rows = np.arange(len(lengths))
        return self._emitted[rows, lengths], self._seconds[lengths] + self._draft_s * in_vain

    def fixed(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        return self.play(np.full(len(self.hidden), length), np.zeros(len(self.hidden)))

    def head(self, folder: Path, lag: bool) -> tuple[tuple[np.ndarray, np.ndarray], float, float]:
        """What a head gives at its best threshold; that threshold; the mean length there."""
        with torch.inference_mode():
            odds = load(folder).eval()(self.hidden.flatten(0, 1)).view(self.hidden.shape[:2])
        doubt = 1 - (0.5 + 0.5 * np.tanh(0.5 * odds.double().numpy())).cumprod(1)
        best: Any = None
        for h in THRESHOLDS:
            stops = doubt > h
            lengths = np.where(stops.any(1), stops.argmax(1) + 1 + lag, MAX_LENGTH)
            lengths = np.minimum(lengths, MAX_LENGTH)
            found = self.play(lengths, (lengths < MAX_LENGTH) & (not lag))
            if best is None or speed(found) > speed(best[0]):
                best = found, float(h), float(lengths.mean())
        return best  # type: ignore[no-any-return]


def speed(found: tuple[np.ndarray, np.ndarray]) -> float:
    return float(found[0].sum() / found[1].sum())


def over(found: tuple[np.ndarray, np.ndarray], base: tuple[np.ndarray, np.ndarray]) -> list[float]:
    """Speed over that of another way to stop, with a 95% bootstrap interval over places."""
    picks = np.random.default_rng(0).integers(0, len(base[0]), (1000, len(base[0])))
    speeds = [a[picks].sum(1) / b[picks].sum(1) for a, b in (found, base)]
    low, high = np.quantile(speeds[0] / speeds[1], [0.025, 0.975])
    return [round(x, 4) for x in (speed(found) / speed(base), float(low), float(high))]


def panel(places: Places, folders: list[Path]) -> dict[str, Any]:
    fixed = {f"K={length}": places.fixed(length) for length in LENGTHS}
    best = max(fixed, key=lambda name: speed(fixed[name]))
    heads = {
        f"{folder.name}{', lag' if lag else ''}": places.head(folder, lag)
        for folder in folders
        for lag in (False, True)
    }
    base = heads[BASE][0]
    rows = {name: {"tok_per_s": speed(f), "over_best_fixed": over(f, fixed[best])}
            for name, f in fixed.items()}  # fmt: skip
    for name, (found, h, length) in heads.items():
        rows[name] = {
            "tok_per_s": speed(found), "h": h, "mean_length": length,
            "over_best_fixed": over(found, fixed[best]), "over_base": over(found, base),
        }  # fmt: skip
    return {"best_fixed": best, "base": BASE, "rows": rows}


def show(name: str, found: dict[str, Any]) -> None:
    table = Table(
        "way", "tok/s", f"x {found['best_fixed']}", f"x {BASE}", "h", "length", title=name
    )
    for way, row in found["rows"].items():
        cells = [
            "{:.3f} ({:.3f} to {:.3f})".format(*row[key]) if key in row else ""
            for key in ("over_best_fixed", "over_base")
        ]
        more = [f"{row[key]:.2f}" if key in row else "" for key in ("h", "mean_length")]
        table.add_row(way, f"{row['tok_per_s']:.1f}", *cells, *more)
    Console(width=120).print(table)


def main() -> None:
    """Draft, judge, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--places", type=int, default=1200)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    scene = Scene(args.work)
    target, drafter = scene.target, scene.drafter.model
    costs = measure_costs(target, drafter)
    folders = sorted((args.work / "specdecpp").glob("*-D*-w*"))
    found: dict[str, Any] = {}
    for name, texts in scene.test_texts().items():
        chains = draft_chains(
            target.module, drafter.module, texts, length=MAX_LENGTH, num_chains=args.places
        )
        found[name] = panel(Places(chains, costs), folders)
        show(name, found[name])
    seconds = {"target_s": costs.target_s.tolist(), "draft_s": costs.draft_s[drafter.name]}
    save(args.out, {"places": args.places, "costs": seconds, "panels": found})


if __name__ == "__main__":
    main()
