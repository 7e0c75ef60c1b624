"""From runs to results: MAT, rounds, tokens per second, regret, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from draftwise.types import Floats
from draftwise_lab.sim.hindsight import Totals, best_plan
from draftwise_lab.sim.play import Run
from draftwise_lab.sim.run import Match, Outcome

PLAIN_ROW, BEST_ROW, BEST_EACH_ROW = "plain", "best fixed plan", "best fixed plan of each text"
"""Rows that no policy played: what plans would have done in hindsight."""

Result = dict[str, Any]
"""One domain and policy, flat; the keys are documented in docs/lab/simulator.md."""


def half_width(values: Sequence[float] | Floats) -> float | None:
    """Half a 95% interval of the mean: 1.96 standard errors; None for a single value.

    >>> round(half_width([1.0, 3.0]), 9)
    1.96
    """
    if len(values) < 2:
        return None
    return 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def results(match: Match, outcome: Outcome) -> list[Result]:
    """A row for every domain and contestant, with the rows of hindsight after them."""
    rows: list[Result] = []
    for domain, found in outcome.hindsight.items():
        for contestant in match.contestants:
            mine = (domain, contestant.label)
            runs = [run for run in outcome.runs if (run.domain, run.policy) == mine]
            rows.append(_played(runs, [found[run.seed, run.text].plain_s for run in runs]))
        rows += _hindsight_rows(match, domain, list(found.values()))
    return rows


def _played(runs: Sequence[Run], plain: Sequence[float]) -> Result:
    """One contestant in one domain."""
    regrets = [run.regret for run in runs]
    row = _row(
        (runs[0].domain, runs[0].policy),
        tokens=[run.tokens for run in runs],
        rounds=[run.rounds for run in runs],
        seconds=[run.seconds for run in runs],
        plain=plain,
    )
    drafted = sum(run.drafted for run in runs)
    return row | {
        "regret": float(np.mean(regrets)),
        "regret_ci95": half_width(regrets),
        "best_plan_ratio": float(np.mean([run.best_plan_ratio for run in runs])),
        "draft_acceptance_rate": sum(run.accepted for run in runs) / drafted if drafted else 0.0,
    }


def _hindsight_rows(match: Match, domain: str, found: Sequence[Totals]) -> list[Result]:
    """Plain decoding, the best plan of the domain, and the best of each text, by seconds."""
    index = best_plan(found, by_seconds=True)
    tokens, plain = [t.tokens for t in found], [t.plain_s for t in found]
    each = [int(t.seconds.argmin()) for t in found]

    def row(label: str, rounds: Sequence[float], seconds: Sequence[float]) -> Result:
        return _row((domain, label), tokens, rounds, seconds, plain)

    best = row(BEST_ROW, [t.rounds[index] for t in found], [t.seconds[index] for t in found])
    return [
        row(PLAIN_ROW, tokens, plain),
        best | {"plan": str(match.plans[index])},
        row(
            BEST_EACH_ROW,
            [t.rounds[i] for t, i in zip(found, each, strict=True)],
            [t.seconds[i] for t, i in zip(found, each, strict=True)],
        ),
    ]


def _row(
    who: tuple[str, str], tokens: Sequence[float], rounds: Sequence[float],
    seconds: Sequence[float], plain: Sequence[float],
) -> Result:  # fmt: skip
    """What counts and seconds of each text give."""
    total_s = math.fsum(seconds)
    each_mat = np.array(tokens) / np.array(rounds)
    each_speedup = np.array(plain) / np.array(seconds)
    return {
        "domain": who[0],
        "policy": who[1],
        "num_texts": len(tokens),
        "mat": sum(tokens) / sum(rounds),
        "ci95": half_width(each_mat),
        "rounds": float(np.mean(rounds)),
        "tok_per_s": sum(tokens) / total_s,
        "speedup": math.fsum(plain) / total_s,
        "speedup_ci95": half_width(each_speedup),
        "slowest_speedup": float(each_speedup.min()),
    }


def averages(rows: Sequence[Result]) -> dict[str, Result]:
    """Over domains, by policy: means, and the geometric mean of speedups."""
    found: dict[str, Result] = {}
    for label in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == label]
        average: Result = {
            key: float(np.mean([row[key] for row in mine]))
            for key in ("mat", "rounds", "tok_per_s", "regret", "best_plan_ratio")
            if key in mine[0]
        }
        speedups = [row["speedup"] for row in mine]
        average["speedup"] = float(np.exp(np.mean(np.log(speedups))))
        average["slowest_speedup"] = min(row["slowest_speedup"] for row in mine)
        halves = [row["ci95"] for row in mine]
        is_known = None not in halves
        average["ci95"] = math.hypot(*halves) / len(mine) if is_known else None
        found[label] = average
    return found
