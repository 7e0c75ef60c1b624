"""Text files from elsewhere: line by line, bounded, and JSON without what JSON does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

STATE_BYTES = 64 << 20
"""No state that was learnt, cost table or list of shards is larger."""
TRACE_BYTES = 1 << 30
"""Nor is a trace, which is read whole."""


def read_text(file: Path, most: int | None = None) -> str:
    """A whole UTF-8 file, without the byte order mark that some editors write.

    Raises OSError, and ValueError for what is not UTF-8, or where ``most`` bytes are given for a
    larger file or for what is no file at all: a pipe or a device may never end.
    """
    if most is not None:
        check_size(file, most)
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_text(file, error) from error


def not_text(what: str | Path, error: UnicodeDecodeError) -> ValueError:
    """What is said of a file, or of input, that is not UTF-8, and how to make it that."""
    byte, file = error.object[error.start], f" {what}" if isinstance(what, Path) else ""
    return ValueError(
        f"{what} is not UTF-8 text (byte {error.start} is 0x{byte:02X}); if it is Latin-1, convert "
        f"it: iconv -f latin1 -t utf-8{file}"
    )


def check_size(file: Path, most: int) -> None:
    """ValueError for more than ``most`` bytes, or what is no plain file; OSError as ``stat``."""
    size = file.stat().st_size
    if not file.is_file():
        raise ValueError("it is no plain file")
    if size > most:
        raise ValueError(f"it has {size:,} bytes, and {most:,} are the most that is read")


def numbered_lines(file: Path, most: int | None = None) -> list[tuple[int, str]]:
    """The lines that are not blank, numbered from 1; errors as ``read_text``.

    Only a line feed ends a line (``str.splitlines`` also cuts at U+2028 and U+0085, which JSON
    allows inside a string).
    """
    lines = read_text(file, most).split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def strict_json(text: str) -> Any:
    """One JSON value; ValueError also for NaN, Infinity, a name given twice and bottomless nesting.

    >>> strict_json('{"a": 1}')
    {'a': 1}
    """
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice!r} twice")
    return found
