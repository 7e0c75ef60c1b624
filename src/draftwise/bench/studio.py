"""What ``draftwise-lab`` adds to a bench: fixed plans worth measuring, answers and a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from draftwise.bench.methods import Known
from draftwise.bench.ours import Asked
from draftwise.bench.runs import Run
from draftwise.bench.suites import Item, Suite
from draftwise.speculator import Speculator

TRACE = "trace.jsonl"
"""The first look's trace, in the bench's folder."""


@dataclass(frozen=True, slots=True)
class Question:
    """The first turn of an item, as ids."""

    domain: str
    prompt: Sequence[int]


class Studio(Protocol):
    """The lab's side of ``draftwise bench``."""

    def check_report(self) -> None:
        """Raise DraftwiseError, before any work is done, if no report can be made."""
        ...

    def scout(
        self, base: Speculator, questions: Sequence[Question], asked: Asked, path: Path, seed: int,
        tick: Callable[[], bool],
    ) -> bool:  # fmt: skip
        """Write the first look's trace; whether it is complete: a ``tick`` may end it."""
        ...

    def look(self, path: Path, base: Speculator, most: int, each: int) -> Known:
        """The fixed plans that are fastest on the trace: of all items and of each domain."""
        ...

    def write_answers(
        self, folder: Path, items: Sequence[Item], runs: Sequence[Run], tokenizer: Any
    ) -> list[Path]:
        """Answers in Spec-Bench's format, a file for each method."""
        ...

    def write_report(
        self, results: Mapping[str, Any], runs: Sequence[Run], suite: Suite, tokenizer: Any,
        folder: Path,
    ) -> Path:  # fmt: skip
        """``report.html``; returns its path."""
        ...


def unaided(base: Speculator) -> Known:
    """What is known without a first look: no fixed plan, and the first model as assistant."""
    from draftwise.drafters.lm import LMDrafter

    models = [drafter.name for drafter in base.drafters if isinstance(drafter, LMDrafter)]
    return Known([], next(iter(models), None))
