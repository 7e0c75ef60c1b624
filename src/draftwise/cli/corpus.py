"""A corpus on disk as documents: text files, folders of them, json lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.types import DraftwiseError

JSON_LINES = {".jsonl", ".ndjson"}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a document; ``is_first`` where a document begins; the bytes of file it stands for."""

    text: str
    is_first: bool
    num_bytes: int


def corpus_files(path: Path) -> list[Path]:
    """The file, or all files of a folder in the order of their names, hidden ones left out.

    Raises DraftwiseError if there is none.
    """
    if path.is_dir():
        found = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
        ]
        if not found:
            raise DraftwiseError(f"{path} has no files: a corpus needs some text")
        return found
    if not path.exists():
        raise DraftwiseError(f"there is no corpus {path}")
    return [path]


def pieces(file: Path) -> Iterator[Piece]:
    """The documents of one file: a text file is one, json lines are one each.

    A long text comes in pieces of whole lines, so that no file has to fit into memory twice.
    Raises DraftwiseError for a line that is no object with ``text`` or ``prompt``/``completion``,
    and UnicodeDecodeError for a file that is not UTF-8.
    """
    with file.open(encoding="utf-8-sig") as lines:
        if file.suffix.lower() in JSON_LINES:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Piece(_text_of(line, file, number), True, len(line.encode()))
            return
        is_first = True
        while chunk := lines.readlines(_CHUNK):
            text = "".join(chunk)
            yield Piece(text, is_first, len(text.encode()))
            is_first = False


def _text_of(line: str, file: Path, number: int) -> str:
    """``text``, or ``prompt`` and ``completion`` as one text."""
    try:
        found: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DraftwiseError(f"{file}, line {number} is not json: {error}") from error
    if isinstance(found, dict):
        for keys in (["text"], ["prompt", "completion"]):
            parts = [found.get(key) for key in keys]
            if all(isinstance(part, str) for part in parts):
                return "".join(str(part) for part in parts)
    raise DraftwiseError(
        f"{file}, line {number}: write an object with a string `text`, or `prompt` and `completion`"
    )
