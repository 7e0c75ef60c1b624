"""Labelled prompts from a jsonl file: the one thing that a policy reads, once, when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwise.lines import TRACE_BYTES, numbered_lines, strict_json
from draftwise.types import Plan

_TEXTS, _LABELS = ("text", "prompt"), ("plan", "drafter")


def read_examples(
    path: str, num_plans: int, plans: Sequence[Plan] | None
) -> tuple[list[str], list[int]]:
    """The texts and the plan's number of each, from a file with one JSON object a line.

    A line has ``text`` (or ``prompt``) and ``plan``, a number, or ``drafter``, a name that stands
    for the first of ``plans`` with that drafter. Empty lines are skipped.
    Errors: ValueError if the file cannot be read, is no plain file or holds no example, and, naming
    the line, for one that is not such an object, or whose plan or drafter is not there.
    """
    try:
        lines = numbered_lines(Path(path), TRACE_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"examples {path}: {why}") from error
    texts, labels = [], []
    for number, line in lines:
        try:
            text, label = read_example(line, num_plans, plans)
        except ValueError as error:
            raise ValueError(f"examples {path}, line {number}: {error}") from error
        texts.append(text)
        labels.append(label)
    if not texts:
        raise ValueError(f"examples {path}: it holds no example")
    return texts, labels


def read_example(line: str, num_plans: int, plans: Sequence[Plan] | None) -> tuple[str, int]:
    """One line's text and plan; ValueError says what is wrong with it.

    >>> read_example('{"prompt": "x = 1", "drafter": "code"}', 2, [Plan("sql", 4), Plan("code", 4)])
    ('x = 1', 1)
    """
    fields = strict_json(line)
    if not isinstance(fields, dict) or len(fields) != 2:
        raise ValueError(f"it must be an object of {_names(_TEXTS)} and {_names(_LABELS)} alone")
    text = fields[_only(fields, _TEXTS)]
    if not isinstance(text, str):
        raise ValueError(f"its text is {text!r}, which is not a string")
    key = _only(fields, _LABELS)
    if key == "drafter":
        return text, _first_plan(fields[key], plans)
    plan = fields[key]
    if type(plan) is not int or not 0 <= plan < num_plans:
        raise ValueError(f"plan {plan!r} is not one of the {num_plans} plans 0..{num_plans - 1}")
    return text, plan


def _first_plan(drafter: Any, plans: Sequence[Plan] | None) -> int:
    """The first plan of this drafter."""
    if plans is None:
        raise ValueError('drafters have no names here: write "plan", a number')
    names = [plan.drafter for plan in plans]
    if drafter not in names:
        known = ", ".join(dict.fromkeys(names))
        raise ValueError(f"unknown drafter {drafter!r}; the drafters are: {known}")
    return names.index(drafter)


def _only(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """The one of these names that the object has."""
    found = [name for name in names if name in fields]
    if len(found) != 1:
        raise ValueError(f"it must have {_names(names)}; it has {', '.join(fields)}")
    return found[0]


def _names(names: Sequence[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)
