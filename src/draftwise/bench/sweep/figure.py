"""SpecDec++'s figure 3 from points: verification rate over discard rate, and the frontiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise.bench.sweep.numbers import Point, frontier
from draftwise.install import hint
from draftwise.types import DraftwiseError

_BASELINE, _HEADS, _ORACLE = "#444444", "#0072b2", "#d55e00"


def require_plots() -> None:
    """Raise DraftwiseError, before any work is done, where plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DraftwiseError(f"plots need matplotlib: {hint('bench')}") from error


def draw(panels: Mapping[str, Sequence[Point]], path: Path) -> None:
    """One panel for each set of prompts; a PNG."""
    require_plots()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    for index, (name, points) in enumerate(panels.items(), 1):
        axes: Any = figure.add_subplot(1, len(panels), index)
        _panel(axes, points)
        axes.set(title=name, xlabel="discarded / tokens", ylabel="target forwards / tokens")
        if index == 1:
            axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _panel(axes: Any, points: Sequence[Point]) -> None:
    fixed = sorted((p for p in points if p.way.is_fixed), key=lambda p: p.way.length)
    heads = [p for p in points if not p.way.is_fixed]
    axes.plot(*_xy(fixed), "o-", color=_BASELINE, markersize=4, label="fixed length")
    for p in fixed:
        at = (p.discard_rate, p.verification_rate)
        axes.annotate(p.way.name, at, xytext=(4, 3), textcoords="offset points", fontsize=7)
    axes.scatter(*_xy(heads), s=12, color=_HEADS, alpha=0.35)
    axes.plot(*_xy(frontier(heads)), color=_HEADS, label="heads, Pareto frontier")
    oracle = sum(p.oracle_rate for p in points) / len(points)
    axes.scatter([0], [oracle], marker="*", s=90, color=_ORACLE, label="oracle (theorem 4.1)")


def _xy(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [p.discard_rate for p in points], [p.verification_rate for p in points]
