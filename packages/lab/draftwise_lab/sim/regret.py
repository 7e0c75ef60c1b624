"""Stopping-time regret: the papers' bounds, its growth in a match, and the papers' figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.colours import PALETTE, drafter_colours
from draftwise.types import NONE, DraftwiseError, Floats
from draftwise_lab.plotting import dress, panels, require_matplotlib
from draftwise_lab.sim.match import Contestant, Match, Outcome, Run, Totals, Trail, best_by_drafter


def ucbspec_bound(mats: Sequence[float], length: int, tokens: float, delta: float = 0.5) -> float:
    """Upper bound on the rounds that UCBSpec loses to the best plan.

    Source: BanditSpec, the last line of the proof of Theorem 4.3 (appendix D.2): sum over the
    suboptimal plans of D/mu* (4 + 2 L^2/D^2 (1 + 2 log(L K E[ST]^2 / (D delta)))) + pi^2 delta/6 +
    K, D the gap in mean emitted tokens. Differs: E[ST] is replaced by its bound, the text's tokens
    (eq. 3). mats: [K] mean emitted tokens of each plan; plans as good as the best add nothing.

    >>> round(ucbspec_bound([2.0, 2.0], length=4, tokens=100), 6)
    2.822467
    """
    best, num = max(mats), len(mats)
    total = math.pi**2 * delta / 6.0 + num
    for mat in mats:
        gap = best - mat
        if gap > 0.0:
            inside = 1.0 + 2.0 * math.log(length * num * tokens**2 / (gap * delta))
            total += gap / best * (4.0 + 2.0 * length**2 / gap**2 * inside)
    return total


def exp3spec_bound(length: int, num_plans: int, tokens: float, best_rounds: float) -> float:
    """Upper bound on the rounds that EXP3Spec loses to the best plan.

    Source: BanditSpec, Theorem 5.3: 2 L min(sqrt(len K log K), 2 L K log K + sqrt(ST* K log K)).
    Differs: none. best_rounds: rounds of the best plan.

    >>> round(exp3spec_bound(length=1, num_plans=2, tokens=100, best_rounds=80), 6)
    23.5482
    """
    entropy = num_plans * math.log(num_plans)
    anytime = math.sqrt(tokens * entropy)
    instance = 2.0 * length * entropy + math.sqrt(best_rounds * entropy)
    return 2.0 * length * min(anytime, instance)


def geometric_lower_bound(alphas: Sequence[float], length: int, tokens: float) -> float:
    """Rounds that every consistent policy must asymptotically lose under eq. (4).

    Source: BanditSpec, Proposition 4.5: H p* (1 - p*^L) / (1 - p*) log len, with the hardness H =
    sum over the suboptimal plans of 1 / (mu* D). Differs: none; the bound is asymptotic, so a short
    text may stay below it. alphas: [K] acceptance probabilities.

    >>> round(geometric_lower_bound([0.5, 0.0], length=1, tokens=math.e), 9)
    0.666666667
    """
    best = max(alphas)
    mats = [sum(alpha**j for j in range(length + 1)) for alpha in alphas]
    top = max(mats)
    hardness = math.fsum(1.0 / (top * (top - mat)) for mat in mats if mat < top)
    return hardness * sum(best**j for j in range(1, length + 1)) * math.log(tokens)


def metasd_leading_term(alphas: Sequence[float], length: int, tokens: float) -> float:
    """The term of MetaSD-UCB's bound that grows with the text.

    Source: MetaSD, Theorem 2: sum of 8 / (N_max D^2) ln B, where D is the gap in alpha. Differs:
    omits the theorem's additive constants, whose values it does not state.

    >>> round(metasd_leading_term([0.9, 0.4], length=4, tokens=math.e), 9)
    8.0
    """
    best = max(alphas)
    gaps = [best - alpha for alpha in alphas if alpha < best]
    return math.fsum(8.0 / (length * gap**2) for gap in gaps) * math.log(tokens)


def fixed_mats(found: Sequence[Totals]) -> Floats:
    """[K] emitted tokens per round of every plan over all texts: the means used in the bounds."""
    rounds = np.sum([t.rounds for t in found], axis=0)
    mats: Floats = sum(t.tokens for t in found) / rounds
    return mats


@dataclass(frozen=True, slots=True)
class Curve:
    """A mean over runs along an axis, with half its 95% interval. xs, means, halves: [G]."""

    xs: Floats
    means: Floats
    halves: Floats


def regret_curve(runs: Sequence[Run], num_points: int = 60) -> Curve:
    """Mean cumulative regret by tokens emitted; the runs must have trails."""
    tokens = min(run.tokens for run in runs)
    xs = np.unique(np.linspace(1, tokens, num_points).astype(np.int64)).astype(np.float64)
    rows = []
    for trail in _trails(runs):
        places = np.searchsorted(trail.positions, xs).clip(0, len(trail.positions) - 1)
        rows.append(np.array(trail.regrets, dtype=np.float64)[places])
    return _curve(xs, np.array(rows))


def best_plan_curve(runs: Sequence[Run]) -> Curve:
    """Share of rounds so far in which the best plan was played, by round."""
    rounds = np.arange(1.0, min(run.rounds for run in runs) + 1)
    hits = np.array([trail.is_best[: len(rounds)] for trail in _trails(runs)], dtype=np.float64)
    return _curve(rounds, hits.cumsum(axis=1) / rounds)


def _trails(runs: Sequence[Run]) -> list[Trail]:
    return [run.trail for run in runs if run.trail is not None]


def _curve(xs: Floats, rows: Floats) -> Curve:
    num = len(rows)
    spread = rows.std(axis=0, ddof=1) if num > 1 else np.zeros(len(xs))
    return Curve(xs, rows.mean(axis=0), 1.96 * spread / math.sqrt(num))


_MOST_LINES = 8


def prepare(folder: Path) -> None:
    """Create the folder. Raises DraftwiseError, before any work, if plots cannot be drawn."""
    require_matplotlib()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DraftwiseError(f"plots cannot go to {folder}: {error.strerror}") from error


def draw(
    reports: Sequence[dict[str, Any]], match: Match, outcome: Outcome, folder: Path
) -> list[Path]:
    """Write a match's PNGs (``regret``, ``best-plan``, ``estimates``) and, for several pool sizes,
    one of all reports (``drafters``); return their paths."""
    prepare(folder)
    domain = match.environment.domains[0]
    title = f"{reports[-1]['preset']}, {domain}"
    runs: dict[str, list[Run]] = {}
    for run in outcome.runs:
        if run.domain == domain:
            runs.setdefault(run.policy, []).append(run)
    figures = {
        "regret": _regret(title, match, list(outcome.hindsight[domain].values()), runs),
        "best-plan": _best_plan(title, match, runs),
        "estimates": _estimates(title, match, runs),
        **({"drafters": _pool_sizes(reports)} if len(reports) > 1 else {}),
    }
    for name, figure in figures.items():
        if name != "estimates":  # the legend is next to the axes
            figure.legend(loc="outside right upper", fontsize=8, frameon=False)
        # omit matplotlib's version, so that files are reproducible
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    return [folder / f"{name}.png" for name in figures]


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    figure, (axes,) = panels(1, 1, 8.4, 4.4)
    _dress(axes, title, x, y)
    return figure, axes


def _dress(axes: Any, title: str, x: str, y: str) -> None:
    dress(axes, xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=10, loc="left")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _line(axes: Any, curve: Curve, colour: str, label: str) -> None:
    low, high = curve.means - curve.halves, curve.means + curve.halves
    axes.plot(curve.xs, curve.means, color=colour, linewidth=1.6, label=label)
    axes.fill_between(curve.xs, low, high, color=colour, alpha=0.15, linewidth=0)


Runs = Mapping[str, Sequence[Run]]
"""Runs by policy label."""


def _regret(title: str, match: Match, found: Sequence[Totals], runs: Runs) -> Any:
    figure, axes = _axes(title, "tokens emitted", "rounds above the best fixed plan")
    highest = 1.0
    for index, contestant in enumerate(match.contestants[:_MOST_LINES]):
        curve = regret_curve(runs[contestant.label])
        highest = max(highest, float(curve.means.max()))
        _line(axes, curve, PALETTE[index], contestant.label)
        mine = [match.plans.index(plan) for plan in contestant.plans]
        bound = _bound(contestant, fixed_mats(found)[mine].tolist(), curve)
        if bound is not None:
            axes.plot(
                curve.xs, bound, color=PALETTE[index], linestyle="--", linewidth=1.0,
                label=f"bound of {contestant.policy.partition(':')[0]}",
            )  # fmt: skip
            highest = max(highest, float(bound.max()))
    if highest > 200.0:
        axes.set_yscale("symlog", linthresh=10.0)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return figure


def _bound(contestant: Contestant, mats: Sequence[float], curve: Curve) -> Any:
    """[G] the theorem's bound at each number of tokens; None if no theorem applies."""
    name = contestant.policy.partition(":")[0]
    length = max(plan.length for plan in contestant.plans)
    if contestant.reward != "length" or contestant.feedback != "bandit" or len(mats) < 2:
        return None
    if name == "ucbspec":
        return np.array([ucbspec_bound(mats, length, x) for x in curve.xs])
    if name == "exp3spec":
        return np.array([exp3spec_bound(length, len(mats), x, x / max(mats)) for x in curve.xs])
    return None


def _best_plan(title: str, match: Match, runs: Runs) -> Any:
    figure, axes = _axes(title, "round", "share of rounds with the best fixed plan")
    for index, contestant in enumerate(match.contestants[:_MOST_LINES]):
        _line(axes, best_plan_curve(runs[contestant.label]), PALETTE[index], contestant.label)
    axes.set_ylim(-0.02, 1.02)
    return figure


def _estimates(title: str, match: Match, runs: Runs) -> Any:
    """Each policy's estimates in one run: for each drafter, the plan with the best final one."""
    shown = match.contestants[:_MOST_LINES]
    colours = drafter_colours(p.drafter for p in match.plans if p.drafter != NONE)
    figure, grid = panels(len(shown), 2, 5.4, 2.9)
    for axes, contestant in zip(grid, shown, strict=True):
        values = np.array(_trails(runs[contestant.label])[0].estimates)
        _dress(axes, contestant.label, "round", "estimate")
        best = best_by_drafter(contestant.plans, -values[-1])
        for plan in sorted([*best.values()][:_MOST_LINES]):
            played = contestant.plans[plan]
            axes.plot(
                np.arange(1, len(values) + 1), values[:, plan], label=str(played), linewidth=1.2,
                color=colours.get(played.drafter, "#767676"),
            )  # fmt: skip
        axes.legend(fontsize=6.5, frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left")
    figure.suptitle(f"{title}: estimates of one run", fontsize=10)
    return figure


def _pool_sizes(reports: Sequence[dict[str, Any]]) -> Any:
    figure, axes = _axes(str(reports[0]["preset"]), "drafters in the pool", "MAT")
    sizes = [report["num_drafters"] for report in reports]
    labels = [*reports[0]["policies"], "best fixed plan"]
    for index, label in enumerate(labels[-_MOST_LINES:]):
        means = np.array([report["average"][label]["mat"] for report in reports])
        halves = np.array([report["average"][label]["ci95"] or 0.0 for report in reports])
        style = ":" if label == "best fixed plan" else "-"
        axes.errorbar(
            sizes, means, yerr=halves, color=PALETTE[index], linestyle=style, marker="o",
            markersize=3.5, label=label, capsize=2,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    return figure
