"""Sums of alphas and of their weights as plain JSON, and back only if they can be such sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def plain(owner: object, names: Sequence[str]) -> dict[str, Any]:
    """Lists of numbers under their names."""
    return {name: [float(value) for value in getattr(owner, name)] for name in names}


def tallies(state: Mapping[str, Any], names: Sequence[str], length: int) -> list[list[float]]:
    """The named lists, which come in pairs ``num, den`` with 0 <= num <= den.

    Raises ValueError for other names, lengths or numbers.

    >>> tallies({"num": [1], "den": [2]}, ("num", "den"), 1)
    [[1.0], [2.0]]
    """
    if set(state) != set(names):
        raise ValueError(f"a table holds {sorted(state)}, and not {sorted(names)}")
    found = [[float(value) for value in state[name]] for name in names]
    for num, den in zip(found[::2], found[1::2], strict=True):
        if not len(num) == len(den) == length:
            raise ValueError(f"a table has {len(num)} rows, and not {length}")
        for part, whole in zip(num, den, strict=True):
            if not 0.0 <= part <= whole + 1e-6 < math.inf:
                raise ValueError(f"a table says {part} accepted out of {whole}")
    return found
