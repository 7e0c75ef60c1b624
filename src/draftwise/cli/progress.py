"""Progress of a batch on stderr, out of the way of what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from draftwise.cli.failures import VOICE

if TYPE_CHECKING:
    from draftwise.engine.records import Round


def bars(
    what: str, *columns: ProgressColumn, is_shown: bool = True, stays: bool = False
) -> Progress:
    """Bars on a terminal: a text, how far it is, and these columns.

    stays: whether they stay when all is done, and what is printed meanwhile goes above them.
    """
    console = Console(stderr=True)
    return Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        console=console,
        transient=not stays,
        redirect_stdout=stays,
        redirect_stderr=stays,
        disable=not (is_shown and VOICE.notes and console.is_terminal),
    )


class TokenProgress:
    """Prompts answered and tokens a second; shown on a terminal only."""

    def __init__(self, num_prompts: int) -> None:
        rate = TextColumn("{task.fields[rate]}")
        self._progress = bars("prompts", rate, TimeElapsedColumn())
        self._task = self._progress.add_task("", total=num_prompts, rate="")
        self._num_tokens, self._seconds, self._last = 0, 0.0, 0

    def __enter__(self) -> TokenProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def saw(self, round_: Round) -> None:
        self._num_tokens += round_.num_emitted
        if round_.round != self._last:
            self._last = round_.round
            self._seconds += sum(round_.seconds.values())
        rate = self._num_tokens / self._seconds if self._seconds else 0.0
        self._progress.update(self._task, rate=f"{rate:.0f} tok/s")

    @contextmanager
    def paused(self, num_done: int) -> Iterator[None]:
        """Take the bar away while answers are printed; ``num_done`` more are finished."""
        self._progress.stop()
        yield
        self._progress.update(self._task, advance=num_done)
        self._progress.start()
