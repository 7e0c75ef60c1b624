"""Helpers shared by the lab's figures."""

from __future__ import annotations

from typing import Any

from draftwise.install import hint
from draftwise.types import DraftwiseError


def require_matplotlib(what: str = "plots need", instead: str = "") -> None:
    """Raise DraftwiseError, before any work, if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DraftwiseError(f"{what} matplotlib: {hint('bench')}{instead}") from error


def dress(axes: Any, **texts: Any) -> None:
    """Add a light grid and hide two spines; texts: as for ``Axes.set``."""
    axes.set(**texts)
    axes.title.set_fontsize(10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def panels(num: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with ``num`` axes in a grid; width and height of each are in inches."""
    from matplotlib.figure import Figure

    columns = min(columns, num)
    rows = -(-num // columns)
    figure = Figure(figsize=(width * columns, height * rows), dpi=150, layout="constrained")
    found = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in found[num:]:
        axes.set_visible(False)
    return figure, list(found[:num])
