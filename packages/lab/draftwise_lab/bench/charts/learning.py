"""How policies learn: estimates and pulls, share of the best drafter, regret; and the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftwise.bench.runs import Run
from draftwise.types import Floats
from draftwise_lab.bench.charts.canvas import (
    GRID,
    INK,
    LINES,
    SOFT,
    WIDTH,
    colour,
    family,
    figure,
    figure_beside,
    label_points,
    short,
)
from draftwise_lab.bench.hindsight import Hindsight

_MOST_PANELS = 8
_MOST_ARMS = 9
_STROKES = ("-", "--", "-.", ":")


def courses(runs: Sequence[Run], colours: Mapping[str, str]) -> Any:
    """Estimates of every arm by round, and below them which arm played; a panel a policy."""
    able = [run for run in runs if run.course and len(run.course["arms"]) > 1]
    shown = sorted(able, key=lambda run: (run.method != "draftwise", run.method))[:_MOST_PANELS]
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    made = figure(2.75 * lines, width=WIDTH if columns == 2 else 6.0)
    outer = made.add_gridspec(2 * lines, columns, height_ratios=[5, 0.55] * lines)
    for index, run in enumerate(shown):
        line, column = divmod(index, columns)
        top = made.add_subplot(outer[2 * line, column])
        strip = made.add_subplot(outer[2 * line + 1, column], sharex=top)
        _course(top, strip, run, colours)
    return made


def _course(top: Any, strip: Any, run: Run, colours: Mapping[str, str]) -> None:
    assert run.course is not None
    values, arms = np.array(run.course["values"]), list(run.course["arms"])
    played = run.course["played"]
    often = sorted(range(len(arms)), key=lambda i: (-played.count(i), -values[-1, i]))
    rounds = np.arange(1, len(values) + 1)
    for arm in sorted(often[:_MOST_ARMS]):
        top.plot(rounds, values[:, arm], color=colours[arms[arm]], linewidth=1.3, label=arms[arm])
    top.set_title(run.method)
    top.set_ylabel("estimate")
    top.tick_params(labelbottom=False)
    top.legend(loc="upper left", bbox_to_anchor=(1.0, 1.04), fontsize=7, labelspacing=0.3)
    strip.bar(rounds, 1.0, width=1.0, color=[colours[arms[arm]] for arm in played])
    strip.set_ylim(0, 1)
    strip.set_yticks([])
    strip.set_xlim(0.5, len(values) + 0.5)
    strip.grid(visible=False)
    strip.set_ylabel("played", rotation=0, ha="right", va="center", fontsize=7.5)
    strip.set_xlabel("round", fontsize=8)
    strip.xaxis.get_major_locator().set_params(integer=True)


def best_arm(runs: Sequence[Run], hindsight: Hindsight) -> Any:
    """Share of rounds with the drafter that was the prompt's best in hindsight, by round."""
    made = figure(3.4)
    axes = made.subplots()
    names = sorted({run.method for run in runs if run.course})
    drawn = 0
    for name in names:
        hits = [h for run in runs if run.method == name if (h := _hits(run, hindsight)) is not None]
        if hits:
            share = _running_share(hits)
            rounds = np.arange(1, len(share) + 1)
            line = "-" if name == "draftwise" else _STROKES[drawn // len(LINES) % len(_STROKES)]
            shade = colour(name) if name == "draftwise" else LINES[drawn % len(LINES)]
            drawn += name != "draftwise"
            wide = 2.2 if name == "draftwise" else 1.3
            axes.plot(rounds, share, line, color=shade, linewidth=wide, label=name)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("round")
    axes.set_ylabel("share of rounds so far")
    made.legend(loc="outside right upper")
    return made


def _hits(run: Run, hindsight: Hindsight) -> list[bool] | None:
    """Round by round, whether the best drafter played; None where there is no choice."""
    if run.course is None or family(run.method) == "fixed":
        return None
    best = hindsight.best_drafter.get(run.item)
    if best is None or len(run.course["arms"]) < 2:
        return None
    return [plan.startswith(f"{best}x") for plan in run.course["plans"]]


def _running_share(hits: Sequence[Sequence[bool]]) -> Floats:
    """[R] mean over texts of the share of hits up to each round, while half of them still run."""
    length = int(np.median([len(found) for found in hits]))
    shares = np.full((len(hits), length), np.nan)
    for row, found in enumerate(hits):
        part = np.cumsum(found[:length]) / np.arange(1, min(len(found), length) + 1)
        shares[row, : len(part)] = part
    mean: Floats = np.nanmean(shares, axis=0)
    return mean


def regret(runs: Sequence[Run], names: Sequence[str], best: str, clock: str) -> Any:
    """Rounds, and milliseconds, above the best fixed plan of all items, by tokens emitted."""
    made = figure(3.6)
    panels = made.subplots(1, 2)
    words = ("rounds", "milliseconds")
    reference = {run.item: run for run in runs if run.method == best and run.repeat == 0}
    for axes, word in zip(panels, words, strict=True):
        axes.axhline(0.0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set_title(f"{word} above {short(best)}")
        axes.set_xlabel("tokens emitted")
        for index, name in enumerate(names):
            mine = [run for run in runs if run.method == name and run.repeat == 0]
            pairs = [(run, reference[run.item]) for run in mine if run.item in reference]
            curve = _regret(pairs, None if word == "rounds" else clock)
            if curve is not None:
                wide = 2.2 if name == "draftwise" else 1.3
                shade = colour(name) if name == "draftwise" else LINES[index % len(LINES)]
                axes.plot(curve, color=shade, linewidth=wide,
                          label=name if word == "rounds" else None)  # fmt: skip
    made.legend(loc="outside right upper")
    return made


def _regret(pairs: Sequence[tuple[Run, Run]], clock: str | None) -> Floats | None:
    """[T] mean over items, up to the median item's length; clock None = rounds."""
    if not pairs or not all(a.round_s and b.round_s for a, b in pairs):
        return None
    length = int(np.median([min(a.num_tokens, b.num_tokens) for a, b in pairs]))
    found = [
        _cost_to_reach(a, length, clock) - _cost_to_reach(b, length, clock)
        for a, b in pairs
        if min(a.num_tokens, b.num_tokens) >= length
    ]
    mean: Floats = np.mean(found, axis=0)
    return mean


def _cost_to_reach(run: Run, length: int, clock: str | None) -> Floats:
    """[length + 1] rounds (or milliseconds) until so many tokens were emitted."""
    ends = np.cumsum(run.emitted)
    cost = np.arange(1.0, len(ends) + 1)
    if clock is not None:
        cost = np.cumsum(run.round_s) * 1000.0 * run.scale(clock)
    reached: Floats = np.concatenate([[0.0], cost])[
        np.searchsorted(ends, np.arange(1, length + 1)) + 1
    ]
    return np.concatenate([[0.0], reached])


def plane(results: Mapping[str, Any], hindsight: Hindsight, colours: Mapping[str, str]) -> Any:
    """What is wasted against how often the target runs; lower left is better, none beats
    the oracle."""
    rows = {n: r for n, r in results["methods"].items() if r["discard_rate"] is not None}
    points = [(n, r["discard_rate"], r["verification_rate"]) for n, r in rows.items()]
    made = figure_beside(max(4.4, 0.19 * len(points) + 0.8))
    axes = made.subplots()
    best = sorted(hindsight.fixed, key=lambda name: hindsight.oracle[name][1])[:3]
    for name in best:
        xs, ys = zip(*hindsight.fixed[name], strict=True)
        shade = colours.get(name, INK)
        axes.plot(xs, ys, color=shade, linewidth=1.2, marker=".", markersize=4,
                  label=f"{name}, lengths 1 to {hindsight.lengths[-1]}")  # fmt: skip
        axes.plot(*hindsight.oracle[name], "*", color=shade, markersize=10, clip_on=False,
                  label=f"{name}, oracle", linestyle="none")  # fmt: skip
    axes.plot(*hindsight.oracle["any"], "*", color=INK, markersize=12, clip_on=False,
              label="any drafter, oracle", linestyle="none")  # fmt: skip
    for name, x, y in points:
        axes.plot([x], [y], "o", color=colour(name), markersize=5.5, zorder=3,
                  markeredgecolor=GRID, markeredgewidth=0.5)  # fmt: skip
    axes.set_xscale("symlog", linthresh=1.0, linscale=1.2)
    axes.set_xlim(left=0.0)
    axes.set_ylim(0.0, 1.04)
    ticks = [t for t in (0, 0.5, 1, 2, 5, 10, 20, 50, 100) if t <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("discard rate (discarded / emitted)")
    axes.set_ylabel("verification rate (target forwards / emitted)")
    made.legend(loc="outside lower left", ncols=2)
    label_points(axes, sorted(points, key=lambda point: -point[2]))
    return made
