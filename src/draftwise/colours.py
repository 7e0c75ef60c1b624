"""The colour of each drafter: the same on the terminal, on the live page and in all figures."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable

PALETTE = (
    "#d55e00", "#1a85c8", "#00935a", "#c83c9a", "#8566e8", "#8f7700", "#e0334a", "#008c96",
    "#5f9000", "#a8683f", "#5872a8", "#d0607a",
)  # fmt: skip
"""Contrast of at least 3:1 on the light and dark backgrounds of page and report (WCAG 1.4.11)."""
_TURN = 0.618033988749895  # golden-ratio step around the hue circle: no hue occurs twice
_LUMINANCE = 0.205


def drafter_colours(drafters: Iterable[str]) -> dict[str, str]:
    """A distinct colour, ``#rrggbb``, for each drafter, by its index in the pool.

    >>> drafter_colours(["small", "lookup"])
    {'small': '#d55e00', 'lookup': '#1a85c8'}
    """
    return {name: nth_colour(place) for place, name in enumerate(dict.fromkeys(drafters))}


def nth_colour(place: int) -> str:
    """The colour of the drafter at an index: from ``PALETTE``, then computed."""
    if place < len(PALETTE):
        return PALETTE[place]
    hue, low, high = place * _TURN % 1.0, 0.0, 1.0
    for _ in range(20):  # bisect for the lightness that has the luminance at this hue
        middle = (low + high) / 2
        is_dark = luminance(_hex(hue, middle)) < _LUMINANCE
        low, high = (middle, high) if is_dark else (low, middle)
    return _hex(hue, high)


def luminance(colour: str) -> float:
    """The relative luminance of ``#rrggbb``, 0 to 1, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _hex(hue: float, lightness: float) -> str:
    parts = colorsys.hls_to_rgb(hue, lightness, 0.6)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
