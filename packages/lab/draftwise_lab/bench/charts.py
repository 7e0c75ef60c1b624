"""The report's figures as inline SVG in the page's colours, light and dark."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwise.colours import PALETTE
from draftwise.types import Floats
from draftwise_lab.bench.records import ContestRun

if TYPE_CHECKING:
    from draftwise_lab.bench.scout import Hindsight


INK, SOFT, GRID = "#010203", "#040506", "#070809"
"""Placeholders for the page's colours of text, secondary text and lines."""
_PAGE = {INK: "var(--ink)", SOFT: "var(--soft)", GRID: "var(--line)"}
FAMILIES = {
    "draftwise": PALETTE[6], "preset": PALETTE[1], "fixed": PALETTE[2], "peer": PALETTE[9],
    "plain": SOFT,
}  # fmt: skip
"""Colours of methods by kind."""
LINES = tuple(shade for shade in PALETTE if shade != FAMILIES["draftwise"])
"""Colours of all curves other than the default's."""

_STYLE: Any = {
    "svg.fonttype": "none",  # keep text as text: searchable, and in the page's colour
    "svg.hashsalt": "draftwise",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
}


def style() -> Any:
    import matplotlib

    return matplotlib.rc_context(_STYLE)


WIDTH, _NAMES = 10.4, 2.35
"""Width of a full-page figure and of a column of names next to the axes, in inches."""


def figure(height: float, *, width: float = WIDTH) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def to_svg(made: Any, name: str) -> str:
    """The figure as an ``<svg>`` element; ``name`` prefixes its ids, which must not clash."""
    file = io.StringIO()
    made.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    for pattern, new in (
        (r"(?s)<metadata>.*?</metadata>", ""),
        (r' xmlns(:xlink)?="[^"]*"', ""),
        (r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-"),
        (r"font: ([0-9.]+)px [^;\"]*", r"font: \1px var(--font)"),
        *_PAGE.items(),
    ):
        text = re.sub(pattern, new, text)
    return text


def family(method: str) -> str:
    """The kind of a method: draftwise, preset, fixed, peer or plain."""
    kind = method.partition(":")[0].replace("transformers", "peer")
    return kind if kind in FAMILIES else "preset"


def colour(method: str) -> str:
    return FAMILIES[family(method)]


def short(method: str) -> str:
    """A method's name, shortened for charts.

    >>> short("transformers:generalistx20/confidence"), short("fixed:lookupx8")
    ('hf generalistx20/confidence', 'lookupx8')
    """
    if method == "transformers":
        return "hf generate"
    return method.replace("transformers:", "hf ").replace("fixed:", "")


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions in the order of ``wanted`` and close to it, at least ``gap`` apart, up to ``high``.

    >>> spread([1.0, 1.0, 5.0], gap=1.0, low=0.0, high=5.0)
    [1.0, 2.0, 5.0]
    """
    order = np.argsort(wanted, kind="stable")
    places = np.maximum(np.array(wanted)[order], low)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    places[-1:] = np.minimum(places[-1:], high)
    for i in range(len(places) - 2, -1, -1):
        places[i] = min(places[i], places[i + 1] - gap)
    found = np.empty(len(places))
    found[order] = places
    return found.tolist()


def _plot_points(axes: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Plot methods as points, with names in a column next to the axes, without overlaps. Call this
    last: limits and layout must not change afterwards."""
    size, drawn = 8.0, axes.figure
    for name, x, y in points:
        axes.plot([x], [y], "o", color=colour(name), markersize=5.5, zorder=3,
                  markeredgecolor=GRID, markeredgewidth=0.5)  # fmt: skip
    drawn.get_layout_engine().set(rect=(0, 0, 1 - _NAMES / WIDTH, 1))
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")
    box, gap = axes.get_window_extent(), size * 1.35 * drawn.dpi / 72.0
    points = sorted(points, key=lambda point: -point[2])
    ys = [axes.transData.transform((x, y))[1] for _, x, y in points]
    places = spread(ys, gap, box.y0 + gap / 2, box.y1 - gap / 2)
    for (name, x, y), place in zip(points, places, strict=True):
        height = (place - box.y0) / (box.y1 - box.y0)
        arrow = {"arrowstyle": "-", "color": colour(name), "linewidth": 0.6, "shrinkA": 1}
        axes.annotate(
            short(name), xy=(x, y), xytext=(1.03, height), textcoords="axes fraction",
            fontsize=size, va="center", color=INK, arrowprops=arrow | {"shrinkB": 3},
        )  # fmt: skip


def _plot_lines(axes: Any, curves: Mapping[str, tuple[Any, Any]]) -> None:
    """Plot a labelled line for each method; the default's is wide and has a separate colour."""
    others = itertools.product(("-", "--", "-.", ":"), LINES)
    for name, (xs, ys) in curves.items():
        is_ours = name == "draftwise"
        stroke, shade = ("-", colour(name)) if is_ours else next(others)
        axes.plot(xs, ys, stroke, color=shade, linewidth=2.2 if is_ours else 1.3, label=name)


_COLUMNS = 3
_MOST = 11
PHASES = (
    "prefill", "catch_up", "draft", "verify", "probe", "choose", "feedback", "learn", "commit",
)  # fmt: skip
_COLOURS = [PALETTE[9], SOFT, *(PALETTE[i] for i in (0, 1, 8, 2, 3, 4, 6))]
_PHASE_COLOURS = dict(zip(PHASES, _COLOURS, strict=True))


def to_show(rows: Mapping[str, Any], most: int = _MOST) -> list[str]:
    """The methods that fit into a chart, fastest first, some of every kind. Of a preset's variants
    (``metasd``, ``metasd@3``) only the fastest is shown."""
    order = sorted(rows, key=lambda name: -rows[name]["tok_per_s"])
    presets: dict[str, str] = {}
    for name in order:
        if family(name) == "preset":
            presets.setdefault(name.partition("@")[0], name)
    peers, fixed = (
        [name for name in order if family(name) == kind and ":" in name][:2]
        for kind in ("peer", "fixed")
    )
    wanted = ["draftwise", "transformers", *peers, *fixed, *presets.values(), *order]
    chosen = list(dict.fromkeys(n for n in wanted if n in rows and n != "plain"))[:most]
    return sorted(chosen, key=order.index)


def speedups(results: Mapping[str, Any]) -> Any:
    """One panel for all items and one per domain; bars are 95% intervals."""
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


def _name_rows(axes: Any, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Label the rows of horizontal bars, the first at the top; return positions and methods."""
    axes.grid(axis="y", visible=False)
    axes.set_yticks(range(len(names)), [short(name) for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)
    return enumerate(reversed(names))


def _ends(speedup: Mapping[str, Any]) -> tuple[float, float]:
    low, high = speedup["ci95"] or 2 * [speedup["median"]]
    return low, high


def _speed_panel(axes: Any, domain: str, rows: Mapping[str, Any], names: Sequence[str]) -> None:
    axes.set_title(domain)
    axes.axvline(1.0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    for place, name in _name_rows(axes, names):
        speedup = rows[name]["speedup"]
        axes.plot(_ends(speedup), [place, place], color=colour(name), linewidth=1.6, alpha=0.75)
        axes.plot([speedup["median"]], [place], "o", color=colour(name), markersize=4.5)


def phases(results: Mapping[str, Any]) -> Any:
    """Milliseconds per token by phase of the engine; peers have only a total."""
    from matplotlib.patches import Patch

    rows = results["methods"]
    names = [*to_show(rows, 14), *(["plain"] if "plain" in rows else [])]
    made = figure(0.25 * len(names) + 1.2)
    axes = made.subplots()
    for place, name in _name_rows(axes, names):
        left, whole = 0.0, 1000.0 / rows[name]["tok_per_s"]
        for phase in PHASES:
            width = 1000.0 * rows[name]["phases"].get(phase, 0.0)
            axes.barh(place, width, left=left, height=0.68, color=_PHASE_COLOURS[phase])
            left += width
        if not rows[name]["phases"]:
            axes.barh(place, whole, height=0.68, color=GRID, edgecolor=SOFT, linewidth=0.6)
    axes.set_xlabel("milliseconds a token")
    axes.set_xlim(left=0.0)
    marks = [Patch(color=_PHASE_COLOURS[phase], label=phase) for phase in PHASES]
    marks.append(Patch(facecolor=GRID, edgecolor=SOFT, linewidth=0.6, label="transformers, whole"))
    made.legend(handles=marks, loc="outside right upper")
    return made


def mat_against_cost(results: Mapping[str, Any]) -> Any:
    """Tokens per round against seconds per round: a method's speed is the slope of its ray."""
    rows = results["methods"]
    base = rows["plain"]["s_per_round"]
    points = [(name, row["s_per_round"] / base, row["mat"]) for name, row in rows.items()]
    made = figure(max(4.2, 0.2 * len(points) + 0.6))
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
    axes.set(xlim=(0, right), ylim=(0, top), ylabel="MAT (emitted tokens a round)")
    axes.set_xlabel("seconds of a round, over plain decoding's")
    _plot_points(axes, points)
    return made


_MOST_PANELS = 8
_MOST_ARMS = 9


def courses(runs: Sequence[ContestRun], colours: Mapping[str, str]) -> Any:
    """Each arm's estimate by round, with the arm played below; one panel per policy."""
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


def _course(top: Any, strip: Any, run: ContestRun, colours: Mapping[str, str]) -> None:
    assert run.course is not None
    values, arms = np.array(run.course["values"]), list(run.course["arms"])
    played = run.course["played"]
    often = sorted(range(len(arms)), key=lambda i: (-played.count(i), -values[-1, i]))
    rounds = np.arange(1, len(values) + 1)
    for arm in sorted(often[:_MOST_ARMS]):
        top.plot(rounds, values[:, arm], color=colours[arms[arm]], linewidth=1.3, label=arms[arm])
    top.set(title=run.method, ylabel="estimate")
    top.tick_params(labelbottom=False)
    top.legend(loc="upper left", bbox_to_anchor=(1.0, 1.04), fontsize=7, labelspacing=0.3)
    strip.bar(rounds, 1.0, width=1.0, color=[colours[arms[arm]] for arm in played])
    strip.set(ylim=(0, 1), yticks=[], xlim=(0.5, len(values) + 0.5))
    strip.grid(visible=False)
    strip.set_ylabel("played", rotation=0, ha="right", va="center", fontsize=7.5)
    strip.set_xlabel("round", fontsize=8)
    strip.xaxis.get_major_locator().set_params(integer=True)


def best_arm(runs: Sequence[ContestRun], hindsight: Hindsight) -> Any:
    """Share of rounds that used the prompt's best drafter in hindsight, by round."""
    made = figure(3.4)
    axes = made.subplots()
    curves = {}
    for name in sorted({run.method for run in runs if run.course}):
        found = [_hits(run, hindsight) for run in runs if run.method == name]
        if hits := [own for own in found if own is not None]:
            share = _running_share(hits)
            curves[name] = np.arange(1, len(share) + 1), share
    _plot_lines(axes, curves)
    axes.set(ylim=(-0.02, 1.02), xlabel="round", ylabel="share of rounds so far")
    made.legend(loc="outside right upper")
    return made


def _hits(run: ContestRun, hindsight: Hindsight) -> list[bool] | None:
    """Whether the best drafter played in each round; None if the method had no choice."""
    if run.course is None or family(run.method) == "fixed":
        return None
    best = hindsight.best_drafter.get(run.item)
    if best is None or len(run.course["arms"]) < 2:
        return None
    return [plan.startswith(f"{best}x") for plan in run.course["plans"]]


def _running_share(hits: Sequence[Sequence[bool]]) -> Floats:
    """[R] mean over texts of the share of hits up to each round, up to the median text's length."""
    length = int(np.median([len(found) for found in hits]))
    shares = np.full((len(hits), length), np.nan)
    for row, found in enumerate(hits):
        part = np.cumsum(found[:length]) / np.arange(1, min(len(found), length) + 1)
        shares[row, : len(part)] = part
    mean: Floats = np.nanmean(shares, axis=0)
    return mean


def regret(runs: Sequence[ContestRun], names: Sequence[str], best: str, clock: str) -> Any:
    """Rounds and milliseconds lost to the best fixed plan over all items, by tokens emitted."""
    made = figure(3.6)
    panels = made.subplots(1, 2)
    reference = {run.item: run for run in runs if run.method == best and run.repeat == 0}
    for axes, unit in zip(panels, ("rounds", "milliseconds"), strict=True):
        axes.axhline(0.0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.set(title=f"{unit} above {short(best)}", xlabel="tokens emitted")
        curves = {}
        for name in names:
            mine = [run for run in runs if run.method == name and run.repeat == 0]
            pairs = [(run, reference[run.item]) for run in mine if run.item in reference]
            curve = _regret(pairs, None if unit == "rounds" else clock)
            if curve is not None:
                curves[name] = np.arange(len(curve)), curve
        _plot_lines(axes, curves)
    made.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return made


def _regret(pairs: Sequence[tuple[ContestRun, ContestRun]], clock: str | None) -> Floats | None:
    """[T] mean regret over items, up to the median item's length; clock None = in rounds."""
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


def _cost_to_reach(run: ContestRun, length: int, clock: str | None) -> Floats:
    """[length + 1] rounds (or milliseconds) until each number of tokens was emitted."""
    ends = np.cumsum([0, *run.emitted])
    cost = np.arange(float(len(ends)))
    if clock is not None:
        cost = np.cumsum([0.0, *run.round_s]) * 1000.0 * run.scale(clock)
    reached: Floats = cost[np.searchsorted(ends, np.arange(length + 1))]
    return reached


def plane(results: Mapping[str, Any], hindsight: Hindsight, colours: Mapping[str, str]) -> Any:
    """Discarded tokens against target forwards; lower left is better, the oracle is the limit."""
    rows = {n: r for n, r in results["methods"].items() if r["discard_rate"] is not None}
    points = [(n, r["discard_rate"], r["verification_rate"]) for n, r in rows.items()]
    made = figure(max(4.4, 0.19 * len(points) + 0.8))
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
    axes.set_xscale("symlog", linthresh=1.0, linscale=1.2)
    axes.set_xlim(left=0.0)
    axes.set_ylim(0.0, 1.04)
    ticks = [t for t in (0, 0.5, 1, 2, 5, 10, 20, 50, 100) if t <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("discard rate (discarded / emitted)")
    axes.set_ylabel("verification rate (target forwards / emitted)")
    made.legend(loc="outside lower left", ncols=2)
    _plot_points(axes, points)
    return made
