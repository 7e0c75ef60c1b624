"""How fast: speedups by domain with intervals, seconds by phase, MAT against what a round costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwise.bench.charts.canvas import (
    GRID,
    SOFT,
    WIDTH,
    colour,
    family,
    figure,
    figure_beside,
    label_points,
    short,
)
from draftwise.colours import PALETTE

_COLUMNS = 3
_MOST = 11
PHASES = ("prefill", "read", "draft", "verify", "look", "choose", "reveal", "learn", "commit")
_COLOURS = [PALETTE[9], SOFT, *(PALETTE[i] for i in (0, 1, 8, 2, 3, 4, 6))]
_PHASE_COLOURS = dict(zip(PHASES, _COLOURS, strict=True))


def to_show(rows: Mapping[str, Any], most: int = _MOST) -> list[str]:
    """The methods that charts have room for, the fastest first: some of every kind.

    Of a preset's variants (``metasd``, ``metasd@3``) the fastest stands for all.
    """
    order = sorted(rows, key=lambda name: -rows[name]["tok_per_s"])
    presets: dict[str, str] = {}
    for name in order:
        if family(name) == "preset":
            presets.setdefault(name.partition("@")[0], name)
    kinds = {
        kind: [name for name in order if family(name) == kind and ":" in name]
        for kind in ("fixed", "peer")
    }
    first = ["draftwise", "transformers", *kinds["peer"][:2], *kinds["fixed"][:2]]
    wanted = [*first, *presets.values(), *order]
    chosen = list(dict.fromkeys(n for n in wanted if n in rows and n != "plain"))[:most]
    return sorted(chosen, key=order.index)


def speedups(results: Mapping[str, Any]) -> Any:
    """A panel for all items and one for each domain; bars are 95% intervals."""
    parts = {"all": results["methods"], **results["domains"]}
    if len(parts) == 2:
        parts = {next(iter(results["domains"])): results["methods"]}
    names = to_show(results["methods"])
    columns = min(_COLUMNS, len(parts))
    lines = -(-len(parts) // columns)
    width = WIDTH if columns == _COLUMNS else 2.9 * columns + 2.4
    made = figure((0.19 * len(names) + 0.75) * lines, width=width)
    grid = made.subplots(lines, columns, squeeze=False, sharey=True, sharex=True)
    for axes, (domain, rows) in zip(grid.ravel(), parts.items(), strict=False):
        _speed_panel(axes, domain, rows, names)
    for axes in grid.ravel()[len(parts) :]:
        axes.set_visible(False)
    most = max(_ends(row[n]["speedup"])[1] for row in parts.values() for n in names)
    grid[0, 0].set_xlim(0.0, 1.04 * most)
    for axes in grid.ravel()[max(0, len(parts) - columns) : len(parts)]:
        axes.set_xlabel("times as fast as plain")
        axes.tick_params(labelbottom=True)
    return made


def _ends(speedup: Mapping[str, Any]) -> tuple[float, float]:
    """Of the interval, or of the point where there is none."""
    low, high = speedup["ci95"] or 2 * [speedup["median"]]
    return low, high


def _speed_panel(axes: Any, domain: str, rows: Mapping[str, Any], names: Sequence[str]) -> None:
    axes.set_title(domain)
    axes.grid(axis="y", visible=False)
    axes.axvline(1.0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    for place, name in enumerate(reversed(names)):
        speedup = rows[name]["speedup"]
        low, high = _ends(speedup)
        axes.plot([low, high], [place, place], color=colour(name), linewidth=1.6, alpha=0.75)
        axes.plot([speedup["median"]], [place], "o", color=colour(name), markersize=4.5)
    axes.set_yticks(range(len(names)), [short(name) for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)


def phases(results: Mapping[str, Any]) -> Any:
    """Milliseconds a token, by what the engine was doing; of peers only the whole is known."""
    from matplotlib.patches import Patch

    rows = results["methods"]
    names = [*to_show(rows, 14), *(["plain"] if "plain" in rows else [])]
    made = figure(0.25 * len(names) + 1.2)
    axes = made.subplots()
    axes.grid(axis="y", visible=False)
    for place, name in enumerate(reversed(names)):
        left, whole = 0.0, 1000.0 / rows[name]["tok_per_s"]
        for phase in PHASES:
            width = 1000.0 * rows[name]["phases"].get(phase, 0.0)
            axes.barh(place, width, left=left, height=0.68, color=_PHASE_COLOURS[phase])
            left += width
        if not rows[name]["phases"]:
            axes.barh(place, whole, height=0.68, color=GRID, edgecolor=SOFT, linewidth=0.6)
    axes.set_yticks(range(len(names)), [short(name) for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel("milliseconds a token")
    axes.set_xlim(left=0.0)
    marks = [Patch(color=_PHASE_COLOURS[phase], label=phase) for phase in PHASES]
    marks.append(Patch(facecolor=GRID, edgecolor=SOFT, linewidth=0.6, label="transformers, whole"))
    made.legend(handles=marks, loc="outside right upper")
    return made


def mat_against_cost(results: Mapping[str, Any]) -> Any:
    """A method's speed is its tokens a round over the seconds of a round: the slope of a ray."""
    rows = results["methods"]
    base = rows["plain"]["s_per_round"]
    points = [(name, row["s_per_round"] / base, row["mat"]) for name, row in rows.items()]
    made = figure_beside(max(4.2, 0.2 * len(points) + 0.6))
    axes = made.subplots()
    right = 1.06 * max(x for _, x, _ in points)
    top = 1.08 * max(y for _, _, y in points)
    for speed in (1, 2, 3, 4, 6, 8):
        end = min(right, top / speed)
        if end > 0.09 * right:
            axes.plot([0, end], [0, speed * end], color=GRID, linewidth=1.0, zorder=1)
            axes.annotate(
                f"{speed}x", (end, speed * end), xytext=(-3, -3), textcoords="offset points",
                ha="right", va="top", fontsize=7.5, color=SOFT,
            )  # fmt: skip
    for name, x, y in points:
        axes.plot([x], [y], "o", color=colour(name), markersize=5.5, zorder=3)
    axes.set_xlim(0, right)
    axes.set_ylim(0, top)
    axes.set_xlabel("seconds of a round, over plain decoding's")
    axes.set_ylabel("MAT (emitted tokens a round)")
    label_points(axes, sorted(points, key=lambda point: -point[2]))
    return made
