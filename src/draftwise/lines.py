"""Text files line by line, as jsonl and lists of prompts need them."""

from __future__ import annotations

from pathlib import Path


def read_text(file: Path) -> str:
    """A whole UTF-8 file, without the byte order mark that some editors write."""
    return file.read_text("utf-8-sig")


def numbered_lines(file: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, numbered from 1.

    Only a line feed ends a line (``str.splitlines`` also cuts at U+2028 and U+0085, which JSON
    allows inside a string). Raises OSError, and UnicodeDecodeError for what is not UTF-8.
    """
    lines = read_text(file).split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
