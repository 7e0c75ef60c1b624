"""Terminal output: text coloured by drafter, progress, summaries."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich import progress as p
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli.failures import VOICE, Output
from draftwise.colours import drafter_colours
from draftwise.types import NONE

if TYPE_CHECKING:
    from draftwise.engine.outputs import Piece, Stats


def colours(drafters: Sequence[str]) -> dict[str, str]:
    """The style of each drafter; dim for tokens of the target, and rounds without a draft."""
    return drafter_colours(drafters) | {"target": "dim", NONE: "dim"}


def painted(pieces: Sequence[Piece], styles: Mapping[str, str]) -> Text:
    return Text.assemble(*((piece, styles.get(source, "")) for piece, source in pieces))


class Pen:
    """Streams text to stdout, coloured on a terminal; is_chat: always end the line."""

    def __init__(self, drafters: Sequence[str], is_chat: bool = False) -> None:
        self._console, self._styles, self._is_chat = Output(), colours(drafters), is_chat

    def write(self, pieces: Sequence[Piece]) -> None:
        if self._console.is_terminal:
            self._console.print(painted(pieces, self._styles), end="", soft_wrap=True)
        else:
            sys.stdout.write("".join(text for text, _ in pieces))
        sys.stdout.flush()

    def end(self, text: str) -> None:
        """End the text with a line break; in ``generate``, a file gets the answer only, unless the
        statistics follow in the same file.
        """
        goes_on = self._is_chat or self._console.is_terminal or (VOICE.notes and streams_meet())
        if goes_on and not text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def streams_meet() -> bool:
    """Whether stdout and stderr are one file or pipe."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # streams of a test or a notebook
        return False


def make_table(*left: str, right: Sequence[str] = (), **style: Any) -> Table:
    """A table: ``left`` columns hold text and wrap, ``right`` columns hold numbers."""
    table = Table(**{"box": box.SIMPLE_HEAD, **style})
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


class Bars(p.Progress):
    """Progress bars on stderr, only on a terminal; further options are those of ``Progress``."""

    def __init__(
        self, what: str = "{task.description}", *columns: p.ProgressColumn,
        is_shown: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        console = Console(stderr=True)
        times = (p.TimeElapsedColumn(), p.TextColumn("left"), p.TimeRemainingColumn())
        usual = {"transient": True, "redirect_stdout": False, "redirect_stderr": False}
        super().__init__(
            p.TextColumn(what), p.BarColumn(), p.MofNCompleteColumn(), *(columns or times),
            console=console, disable=not (is_shown and VOICE.notes and console.is_terminal),
            **{**usual, **options},
        )  # fmt: skip


def yes_or_no(is_same: bool) -> Text:
    return Text("yes", "green") if is_same else Text("NO", "bold red")


def legend(styles: Mapping[str, str]) -> Text:
    text = Text()
    for name, style in styles.items():
        if name != NONE:
            text.append("■ ", style).append(f"{name}  ", style)
    return text


def shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts over their sum, largest first, without zeros."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return {name: value / total for name, value in ordered if value > 0}


def percentages(counts: Mapping[str, float]) -> str:
    """Shares that round to at least 1%: ``"code 61%  none 39%"``."""
    return "  ".join(f"{name} {part:.0%}" for name, part in shares(counts).items() if part >= 0.005)


def counted(num: int, what: str) -> str:
    """
    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{num} {what}{'s' * (num != 1)}"


def times(low: float, high: float) -> str:
    """A relative speed: one number where its range is narrow.

    >>> times(1.98, 2.0), times(1.8, 2.0)
    ('2.00x', '1.8 to 2.0x')
    """
    return f"{high:.2f}x" if low > 0.95 * high else f"{low:.1f} to {high:.1f}x"


def summary(stats: Stats) -> str:
    parts = [
        f"{counted(stats.num_emitted, 'token')} in {sum(stats.seconds_by_phase.values()):.2f} s",
        f"{stats.tok_per_s:.1f} tok/s",
        f"{counted(stats.num_rounds, 'round')}, MAT {stats.mean_accepted_tokens:.2f}",
    ]
    if stats.num_drafted:
        parts.append(f"acceptance {stats.draft_acceptance_rate:.2f}")
    if stats.speed_range is not None and stats.recent_speed is not None:
        low, high = stats.speed_range
        lately = stats.recent_speed
        ratio = low / high if high else 1.0
        parts.append(f"{times(low, high)} plain decoding, {times(ratio * lately, lately)} lately")
    parts.append(f"pulls: {percentages(stats.pulls)}")
    if stats.no_draft:
        reasons = stats.no_draft.most_common()
        parts.append("no draft: " + ", ".join(f"{reason} {num}" for reason, num in reasons))
    return " · ".join(parts)


def total(stats: Sequence[Stats], are_together: bool = False) -> Stats:
    """The sum of all counts and seconds; for rows that ran together, the seconds of the longest."""
    from draftwise.engine.outputs import Stats

    whole = Stats()
    for one in stats:
        whole.merge(one, are_together)
    return whole
