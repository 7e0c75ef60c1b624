"""How regret grows with the text, beside the theorems' bounds: BanditSpec 4.3, 4.5, 5.3; MetaSD 2.

    python -m benchmarks simulator_regret --tokens 30000 --seeds 20

On the preset ``geometric`` (alphas 0.8, 0.6, 0.5, 0.4; length 4). A logarithm shows as equal steps
from one line to the next, as each line is twice as long as the one before. The last line of the
output is one JSON object.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from rich.console import Console
from rich.table import Table

from draftwise_lab.sim import regret
from draftwise_lab.sim.environments.geometric import TruncatedGeometric
from draftwise_lab.sim.presets import setting
from draftwise_lab.sim.run import Match, Outcome, run_match
from draftwise_lab.sim.setup import make_match

LENGTH, PANEL = 4, ("ucbspec", "exp3spec", "ucb1:beta=1/divergence", "normalhedge")


def rows_of(match: Match, outcome: Outcome) -> list[dict[str, float]]:
    """Regrets and bounds at texts of 1/64, 1/32, .. of the whole length."""
    world = match.environment
    assert isinstance(world, TruncatedGeometric)
    alphas = list(world.means["tgd"].values())
    mats = regret.fixed_mats(list(outcome.hindsight["tgd"].values())).tolist()
    places = [match.tokens // 2**power for power in range(6, -1, -1)]
    curves = {
        c.label: regret.regret_curve([r for r in outcome.runs if r.policy == c.label], 4096)
        for c in match.contestants
    }
    rows = []
    for tokens in places:
        row: dict[str, float] = {"tokens": tokens}
        for label, curve in curves.items():
            index = int(np.searchsorted(curve.xs, tokens).clip(0, len(curve.xs) - 1))
            row[label], row[f"{label} ci95"] = curve.means[index], curve.halves[index]
        row["ucbspec upper"] = regret.ucbspec_bound(mats, LENGTH, tokens)
        row["any, lower"] = regret.geometric_lower_bound(alphas, LENGTH, tokens)
        row["exp3spec upper"] = regret.exp3spec_bound(LENGTH, len(mats), tokens, tokens / max(mats))
        row["metasd leading term"] = regret.metasd_leading_term(alphas, LENGTH, tokens)
        rows.append(row)
    return rows


def main() -> None:
    """Play, fold, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    match = make_match(setting("geometric"), list(PANEL), tokens=options.tokens, with_trails=True)
    rows = rows_of(match, run_match(match, range(options.seeds), options.jobs))
    table = Table(title=f"rounds above the best fixed plan, {options.seeds} seeds")
    names = [name for name in rows[0] if not name.endswith("ci95")]
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(
            f"{row[name]:.0f}" + (f" ±{row[f'{name} ci95']:.0f}" if name in PANEL else "")
            for name in names
        ))  # fmt: skip
    Console().print(table)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
