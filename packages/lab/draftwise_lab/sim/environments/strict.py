"""Round records from a file that anything may have written: every field that is used is checked."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isnan
from pathlib import Path
from typing import Any

from draftwise.lines import TRACE_BYTES, numbered_lines, strict_json
from draftwise.types import DraftwiseError

Record = Mapping[str, Any]
LONGEST = 1 << 20
"""Tokens of a round, and positions of a text: what is above would only ask for memory."""


def read_records(path: Path) -> list[Record]:
    """All records of a jsonl file; DraftwiseError names the first line that is none."""
    if not path.is_file():
        raise DraftwiseError(f"there is no trace {path}: write one with draftwise generate --trace")
    records: list[Record] = []
    try:
        lines = numbered_lines(path, TRACE_BYTES)
    except ValueError as error:
        raise DraftwiseError(f"{path} is no trace: {error}") from error
    for number, line in lines:
        try:
            records.append(_checked(strict_json(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise DraftwiseError(
                f"{path}, line {number}: this is no round of a trace ({why}); traces are written "
                "by draftwise generate --trace and draftwise bench"
            ) from error
    if not records:
        raise DraftwiseError(f"{path} is empty: write a trace with draftwise generate --trace")
    return records


def _checked(record: Any) -> Record:
    """The record; ValueError, KeyError, TypeError or AttributeError for any other thing."""
    hash(record["request"])
    for key in ("position", "num_drafted", "num_emitted"):
        _whole(key, record[key])
    _whole("batch_size", record.get("batch_size", 1), least=1)
    for phase, seconds in record["seconds"].items():
        _number(phase, seconds, 0.0, inf)
    if record["num_drafted"]:
        hash(record["drafter"])
    for name, scores in record["scores"].items():
        _whole(f"{name}: start", scores["start"])
        for key in ("alphas", "ratios"):
            for value in scores[key]:
                _number(f"{name}: {key}", value, 0.0, 1.0)
        for match in scores.get("matches", ()):
            _whole(f"{name}: matches", match)
    return dict(record)


def _whole(name: str, value: Any, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= LONGEST:
        raise ValueError(f"{name} is {value!r}, not a whole number from {least} to {LONGEST}")


def _number(name: str, value: Any, least: float, most: float) -> None:
    if type(value) not in {int, float} or isnan(value) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a number from {least} to {most}")
