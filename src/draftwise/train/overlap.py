"""Which texts share words with others: training data with the benchmarks that judge it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from draftwise.types import DraftwiseError

RUN = 10
"""Words in a row that two texts may not share."""

Runs = frozenset[tuple[str, ...]]


def runs(text: str) -> set[tuple[str, ...]]:
    """Every ``RUN`` words of a text that follow each other, in lower case; all, if it is shorter.

    >>> runs("What's up?")
    {('what', 's', 'up')}
    """
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


def runs_of(files: Iterable[Path]) -> Runs:
    """The runs of every string in these jsonl files; DraftwiseError for one that cannot be read."""
    found: set[tuple[str, ...]] = set()
    for file in files:
        try:
            lines = file.read_text("utf-8").split("\n")
            values = [json.loads(line) for line in lines if line.strip()]
        except (OSError, ValueError) as error:
            raise DraftwiseError(f"{file} cannot be read as jsonl: {error}") from error
        found |= {run for text in _strings(values) for run in runs(text)}
    return frozenset(run for run in found if len(run) == RUN)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)
