"""The demo's live picture: a panel for each lane, side by side where there is room."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from draftwise.cli.race import Lane
from draftwise.cli.show import painted

WIDE = 100
"""Columns from which on the panels stand side by side."""

_FRAME_S = 1 / 12
_MOST_LINES, _FEWEST_LINES = 16, 4


class Stage:
    """Draws between rounds, at most twelve times a second, so that no thread disturbs the clock."""

    def __init__(self, console: Console, lanes: Sequence[Lane], styles: Mapping[str, str]) -> None:
        self._console, self._lanes, self._styles = console, lanes, styles
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._drawn_at = 0.0

    def __enter__(self) -> Stage:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.draw(is_last=True)
        self._live.stop()

    def draw(self, is_last: bool = False) -> None:
        """Show how far the lanes are, unless that was done just now."""
        if is_last or time.perf_counter() - self._drawn_at >= _FRAME_S:
            self._live.update(self.picture(is_last), refresh=True)
            self._drawn_at = time.perf_counter()

    def picture(self, is_last: bool) -> RenderableType:
        """The panels; the last picture is as high as its text, not higher."""
        width, height = self._console.size
        is_wide = width >= WIDE
        room = height - 6 if is_wide else height // len(self._lanes) - 4
        room = max(_FEWEST_LINES, min(_MOST_LINES, room))
        inside = (width // len(self._lanes) if is_wide else width) - 4
        texts = [self._tail(lane, inside, room) for lane in self._lanes]
        lines = max(text.plain.count("\n") + 1 for text in texts) if is_last else room
        panels = [
            self._panel(lane, text, lines) for lane, text in zip(self._lanes, texts, strict=True)
        ]
        if not is_wide:
            return Group(*panels)
        grid = Table.grid(expand=True)
        for _ in panels:
            grid.add_column(ratio=1)
        grid.add_row(*panels)
        return grid

    def _tail(self, lane: Lane, width: int, lines: int) -> Text:
        """The last lines of a lane's text, as they wrap at this width."""
        wrapped = painted(lane.pieces, self._styles).wrap(self._console, width)
        return Text("\n").join(wrapped[-lines:])

    def _panel(self, lane: Lane, text: Text, lines: int) -> Panel:
        plain = self._lanes[0]
        rate = f"{lane.tok_per_s:.0f} tok/s" if lane.num_tokens else "..."
        detail = f"{lane.num_tokens} tokens"
        if lane is not plain and lane.num_rounds and plain.tok_per_s:
            rate += f" = {lane.tok_per_s / plain.tok_per_s:.1f}x"
            detail += f", {lane.num_tokens / lane.num_rounds:.1f} a round"
        return Panel(
            text,
            title=Text.assemble((lane.title, "bold")),
            title_align="left",
            subtitle=Text.assemble((rate, "bold"), (f" · {detail}", "dim")),
            subtitle_align="right",
            border_style="bright_black" if lane is plain else "green",
            height=lines + 2,
        )
