"""Options shared by `simulate`, `replay` and `advise`, helpers for their numbers, and progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from draftwise import registry
from draftwise.checks import comma_separated
from draftwise.cli.show import Bars
from draftwise.errors import DraftwiseError, shown
from draftwise.files import holding

_OF_ITS_PAPER = "Default: that of each policy's paper."

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="SPEC",
        help=f"{', '.join(registry.POLICIES)}; repeatable. "
        "`@LENGTHS`, `/REWARD` and `/FEEDBACK` may follow a name. "
        "Default: the preset's panel (simulate), the default policy (replay).",
    ),
]
Reward = Annotated[str | None, typer.Option(help=f"{', '.join(registry.REWARDS)}. {_OF_ITS_PAPER}")]
Feedback = Annotated[
    str | None, typer.Option(help=f"{', '.join(registry.FEEDBACKS)}. {_OF_ITS_PAPER}")
]
Lengths = Annotated[
    str | None, typer.Option(help="Draft lengths: `8`, `2,4,8`, `0-16` (0 = plain decoding).")
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs", help="gpu, cpu, loaded or a JSON file. Default: a trace's own seconds, if any."
    ),
]
Seeds = Annotated[int, typer.Option(min=1, max=10**6, help="Number of random seeds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one object.")]
_MOST = 10_000


def whole_numbers(option: str, text: str, example: str) -> list[int]:
    """Parse ``"1,4,16"`` as whole numbers, in order. Errors: DraftwiseError."""
    said = f"{option} {shown(text)}: write whole numbers from 1 to {_MOST:,}, such as {example}"
    found = comma_separated(text, int, 1, said)
    if max(found) > _MOST:
        raise DraftwiseError(said)
    return found


def rate(value: float) -> str:
    """Format with four significant digits, never in scientific notation.

    >>> rate(72.3149), rate(12345.6)
    ('72.31', '12346')
    """
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def signed(regret: float) -> str:
    """Format a regret with its sign, without a negative zero."""
    return f"{round(regret, 1) + 0.0:+.1f}"


def regret_note(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A caption for the column ``regret``; empty if no row has a regret."""
    if not any("regret" in row for row in rows.values()):
        return ""
    return "regret: rounds more (-: fewer) than the policy's best fixed plan in hindsight"


def alone_in(folder: Path) -> AbstractContextManager[None]:
    taken = f"another draftwise is at work in {folder}: wait for it, or give another folder"
    return holding(folder / ".lock", taken)


class StageBars(Bars):
    """Bars of the stages of one piece of work, below what it prints unless it is ``brief``."""

    def __init__(self, *, is_shown: bool = True, is_brief: bool = False) -> None:
        stays = not is_brief
        super().__init__(
            is_shown=is_shown, transient=is_brief, redirect_stdout=stays, redirect_stderr=stays
        )
        self._stages: dict[str, TaskID] = {}

    def show(self, stage: str, done: int, total: int, loss: float | None = None) -> None:
        """Advance the bar of a stage; its first call creates the bar."""
        if stage not in self._stages:
            self._stages[stage] = self.add_task(stage, total=total)
        shown = stage if loss is None else f"{stage}, loss {loss:.3f}"
        self.update(self._stages[stage], completed=done, description=shown)

    def stage(self, name: str, total: int) -> Callable[..., None]:
        """Begin a stage; returns a function of the number done and, if any, the loss."""
        self.show(name, 0, total)
        return lambda done, loss=None: self.show(name, done, total, loss)


def broken(name: str, width: int) -> str:
    """A long name in lines of at most ``width`` characters, broken after punctuation only.

    >>> broken("transformers:generalistx20/confidence", 30).split("\\n")
    ['transformers:generalistx20/', 'confidence']
    """
    lines = [""]
    for part in re.findall(r"[^/:@,+ ]*[/:@,+ ]|[^/:@,+ ]+", name):
        if len(lines[-1]) + len(part) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
