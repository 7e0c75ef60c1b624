"""Figures as inline SVG that takes its colours from the page, and so follows light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from draftwise.colours import PALETTE
from draftwise.types import DraftwiseError

INK, SOFT, GRID = "#010203", "#040506", "#070809"
"""Stand-ins: the page's text, its quieter text, and its lines."""
_PAGE = {INK: "var(--ink)", SOFT: "var(--soft)", GRID: "var(--line)"}
FAMILIES = {
    "draftwise": PALETTE[6], "preset": PALETTE[1], "fixed": PALETTE[2], "peer": PALETTE[9],
    "plain": SOFT,
}  # fmt: skip
"""Colours of methods by what they are."""
LINES = tuple(shade for shade in PALETTE if shade != FAMILIES["draftwise"])
"""Colours of curves beside the default's."""

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's colour
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


def check_matplotlib() -> None:
    """Raise DraftwiseError, before any work is done, if charts cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DraftwiseError(
            "the report needs matplotlib: pip install 'draftwise[bench]', or use --no-report"
        ) from error


def style() -> Any:
    """A context in which figures are made and written."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


WIDTH = 10.4
"""Of a figure that fills the page, in inches."""
_BESIDE = 2.35
"""Room for names beside the axes, in inches."""


def figure(height: float, *, width: float = WIDTH) -> Any:
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def figure_beside(height: float) -> Any:
    """The same, with room for ``label_points``."""
    made = figure(height)
    made.get_layout_engine().set(rect=(0, 0, 1 - _BESIDE / WIDTH, 1))
    return made


def to_svg(made: Any, name: str) -> str:
    """The figure as an ``<svg>`` element; ``name`` keeps its ids apart from other figures'."""
    file = io.StringIO()
    made.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font: \1px var(--font)", text)
    for stand_in, variable in _PAGE.items():
        text = text.replace(stand_in, variable)
    return text


def family(method: str) -> str:
    """What a method is: draftwise, preset, fixed, peer or plain."""
    kind = method.partition(":")[0]
    names = {"draftwise": "draftwise", "plain": "plain", "fixed": "fixed", "transformers": "peer"}
    return names.get(kind, "preset")


def colour(method: str) -> str:
    """A method's colour."""
    return FAMILIES[family(method)]


def short(method: str) -> str:
    """A method's name where there is little room.

    >>> short("transformers:generalistx20/confidence"), short("fixed:lookupx8")
    ('hf generalistx20/confidence', 'lookupx8')
    """
    if method == "transformers":
        return "hf generate"
    return method.replace("transformers:", "hf ").replace("fixed:", "")


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near to the wanted ones as can be, ``gap`` apart, between ``low`` and ``high``.

    >>> spread([1.0, 1.0, 5.0], gap=1.0, low=0.0, high=6.0)
    [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # each: centre of its members' wishes, number of members
    for index in order:
        blocks.append([wanted[index], 1.0])
        while True:
            centre, num = blocks[-1]
            half = (num - 1) * gap / 2
            blocks[-1][0] = min(max(centre, low + half), high - half)
            if len(blocks) < 2:
                break
            before, many = blocks[-2]
            if blocks[-1][0] - half - (before + (many - 1) * gap / 2) >= gap:
                break
            blocks[-2:] = [[(before * many + centre * num) / (many + num), many + num]]
    places = [c + (i - (n - 1) / 2) * gap for c, n in blocks for i in range(int(n))]
    found = [0.0] * len(wanted)
    for index, place in zip(order, places, strict=True):
        found[index] = place
    return found


def label_points(
    axes: Any, points: Sequence[tuple[str, float, float]], *, size: float = 8.0
) -> None:
    """Names in a column beside the axes, each with a thin line to its point: none overlaps.

    Called last: limits and layout must not change any more.
    """
    axes.figure.draw_without_rendering()
    axes.figure.set_layout_engine("none")
    box, to_pixels = axes.get_window_extent(), axes.transData
    gap = size * 1.35 * axes.figure.dpi / 72.0
    ys = [to_pixels.transform((x, y))[1] for _, x, y in points]
    places = spread(ys, gap, box.y0 + gap / 2, box.y1 - gap / 2)
    for (name, x, y), place in zip(points, places, strict=True):
        height = (place - box.y0) / (box.y1 - box.y0)
        axes.annotate(
            short(name), xy=(x, y), xytext=(1.03, height), textcoords="axes fraction",
            fontsize=size, va="center", color=INK,
            arrowprops={"arrowstyle": "-", "color": colour(name), "linewidth": 0.6,
                        "shrinkA": 1, "shrinkB": 3},
        )  # fmt: skip
