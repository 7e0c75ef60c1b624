"""Prompts from an argument, a file, stdin, or a file of many."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from draftwise.types import DraftwiseError


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The one prompt: argument, file or stdin, of which one line break at the end is dropped.

    Raises DraftwiseError where there are two or none, OSError for a file that cannot be read.
    """
    if prompt is not None and file is not None:
        raise DraftwiseError("give the prompt as an argument or with --file, not both")
    if prompt is not None and prompt != "-":
        return prompt
    if file is not None:
        return file.read_text("utf-8").removesuffix("\n")
    if prompt is None and sys.stdin.isatty():
        raise DraftwiseError("no prompt: give it as an argument, with --file, or on stdin")
    return sys.stdin.read().removesuffix("\n")


def read_batch(file: Path) -> list[str]:
    """One prompt a line, or the ``prompt`` of each object of a jsonl file; blank lines are skipped.

    Raises DraftwiseError for a file without prompts or a line that has none, with its number.
    """
    lines = file.read_text("utf-8").splitlines()
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise DraftwiseError(f"{file} has no prompts: write one a line")
    is_jsonl = file.suffix in {".jsonl", ".json", ".ndjson"}
    return [_from_jsonl(file, n, line) if is_jsonl else line for n, line in numbered]


def _from_jsonl(file: Path, number: int, line: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise DraftwiseError(f"{file}, line {number}: this is not JSON ({error})") from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else entry
    if not isinstance(prompt, str):
        raise DraftwiseError(f'{file}, line {number}: no text under "prompt"')
    return prompt
