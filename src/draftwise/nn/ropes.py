"""Ropes with two tables (longrope): each text is read with the table of its own length.

The library turns a whole forward by the table of its last position, and ``generate`` reads a text
that outgrows the first table again (Phi-3). So p after n tokens is that of one forward over them;
here, too, a row whose keys the other table turned is read again (``nn.feeds.read_turned``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def switch_of(module: Any, can_read_again: bool) -> tuple[int, int]:
    """Tokens that a first table is for, and tokens that a text may have; 0 = no such number.

    A type whose ``generate`` keeps the first table's keys has texts that end there.
    """
    limit = _first_table(module.config.get_text_config())
    can = limit and can_read_again and _reads_again(module)
    return (limit, 0) if can else (0, limit)


def _first_table(config: Any) -> int:
    """Tokens up to which a rope with two tables has one; 0 = it has one anyway."""
    rope = getattr(config, "rope_parameters", None) or {}
    own = getattr(config, "original_max_position_embeddings", None)
    limits = [
        int(limit)
        for one in ([rope] if "rope_type" in rope else rope.values())
        if isinstance(one, dict) and "longrope" in str(one.get("rope_type"))
        if (limit := one.get("original_max_position_embeddings") or own)
    ]
    return min(limits, default=0)


def _reads_again(module: Any) -> bool:
    """Whether ``generate`` reads a text again that outgrows the table that the rope looks at."""
    prepare = getattr(module, "prepare_inputs_for_generation", None)
    code = getattr(prepare, "__code__", None)
    if code is None or "original_max_position_embeddings" not in code.co_consts:
        return False
    own = getattr(module.config, "original_max_position_embeddings", None)
    rope = getattr(module.config, "rope_parameters", None) or {}
    return bool(own) and rope.get("original_max_position_embeddings") == own


class Turns:
    """Of each row its tokens by slot, and whether the second table turned its keys."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.is_long: dict[int, bool] = {}

    def open(self, row: int) -> None:
        """Begin a row, empty."""
        self.tokens[row], self.is_long[row] = [], False

    def copy(self, source: int, row: int, length: int) -> None:
        """Begin a row as another one begins."""
        self.tokens[row] = self.tokens[source][:length]
        self.is_long[row] = self.is_long[source]

    def keep_path(self, row: int, base: int, path: Sequence[int]) -> None:
        """As ``RaggedCache.keep_path``."""
        known = self.tokens[row]
        known[base:] = [known[base + offset] for offset in path]
