"""Timings side by side, as tables; the timing itself is ``draftwise.bench``'s."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftwise.bench.paired import Timing, turns

__all__ = ["Method", "Timing", "measure", "report"]


Method = Callable[[list[int]], list[int]]
"""Prompt ids to the ids of the answer."""


def measure(
    methods: dict[str, Method], prompts: Sequence[list[int]], repeats: int, base: str
) -> Timing:
    """Time each method on each prompt, interleaved, after one answer each that is not counted."""
    names = list(methods)
    seconds = np.zeros((repeats, len(names), len(prompts)))
    identical = dict.fromkeys(names, True)
    num_tokens = np.zeros(len(prompts))
    for method in methods.values():
        method(prompts[0])
    for repeat, index, order in track(
        list(turns(names, len(prompts), repeats)), console=Console(stderr=True)
    ):
        answers = {}
        for name in order:
            start = time.perf_counter()
            answers[name] = methods[name](prompts[index])
            seconds[repeat, names.index(name), index] = time.perf_counter() - start
        num_tokens[index] = len(answers[base])
        for name in names:
            identical[name] &= answers[name] == answers[base]
    return Timing(names, np.median(seconds, axis=0), num_tokens, identical)


def report(timing: Timing, base: str, title: str) -> dict[str, Any]:
    """Print the table and return it as plain data."""
    table = Table(title=title)
    for column in ("method", "tokens/s", f"x {base}", "95% interval", "same tokens"):
        table.add_column(column, justify="left" if column == "method" else "right")
    rows: dict[str, Any] = {}
    for name in timing.names:
        found = timing.compare(name, base)
        value, low, high = found.value, found.low, found.high
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
