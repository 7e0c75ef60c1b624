"""The colour of each drafter: the same on the terminal, on the live page and in all figures."""

from __future__ import annotations

from collections.abc import Iterable

PALETTE = (
    "#d55e00", "#1a85c8", "#00935a", "#c83c9a", "#8566e8", "#8f7700", "#e0334a", "#008c96",
    "#5f9000", "#a8683f", "#5872a8", "#d0607a",
)  # fmt: skip
"""Contrast of at least 3:1 on the light and dark backgrounds of page and report (WCAG 1.4.11)."""


def drafter_colours(drafters: Iterable[str]) -> dict[str, str]:
    """The colour of each drafter, by its index in the pool; from the thirteenth on they repeat.

    >>> drafter_colours(["small", "lookup"])
    {'small': '#d55e00', 'lookup': '#1a85c8'}
    """
    names = enumerate(dict.fromkeys(drafters))
    return {name: PALETTE[place % len(PALETTE)] for place, name in names}
