"""Timings side by side, as tables; the timing itself is ``draftwise.bench``'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftwise.bench import paired
from draftwise.bench.paired import Method, Timing

__all__ = ["Method", "Timing", "measure", "report"]


def measure(
    methods: dict[str, Method], prompts: Sequence[list[int]], repeats: int, base: str
) -> Timing:
    """Time each method on each prompt, interleaved in random order, with a bar on stderr."""
    console = Console(stderr=True)
    return paired.measure(
        methods, prompts, repeats, base, lambda turns: track(list(turns), console=console)
    )


def report(timing: Timing, base: str, title: str) -> dict[str, Any]:
    """Print the table and return it as plain data."""
    table = Table(title=title)
    for column in ("method", "tokens/s", f"x {base}", "95% interval", "same tokens"):
        table.add_column(column, justify="left" if column == "method" else "right")
    rows: dict[str, Any] = {}
    for name in timing.names:
        value, low, high = timing.ratio(name, base)
        rows[name] = {
            "tok_per_s": round(timing.tok_per_s(name), 1),
            "ratio": round(value, 3),
            "ci95": [round(low, 3), round(high, 3)],
            "identical": timing.identical[name],
        }
        table.add_row(
            name, f"{timing.tok_per_s(name):.1f}", f"{value:.2f}", f"{low:.2f} to {high:.2f}",
            "yes" if timing.identical[name] else "NO",
        )  # fmt: skip
    Console().print(table)
    return rows
