"""Paired, interleaved timing: every method answers every prompt in turn, in one process.

These machines are noisy and drift, so only ratios between methods of one run are meant to be read:
per prompt the median of the repeats, then the ratio of summed seconds, with a bootstrap interval
over prompts. Warm-up is not counted, and every answer is compared token by token.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table

Method = Callable[[list[int]], list[int]]


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


COMMIT = _commit()
"""Of the code that runs: asked at the start, since somebody may commit meanwhile."""


@dataclass(frozen=True)
class Timing:
    """seconds [methods, prompts], medians of the repeats; num_tokens [prompts]."""

    names: list[str]
    seconds: np.ndarray
    num_tokens: np.ndarray
    identical: dict[str, bool]

    def ratio(self, name: str, base: str) -> tuple[float, float, float]:
        """How many times faster ``name`` is than ``base``: value and 95% bootstrap interval."""
        fast, slow = (self.seconds[self.names.index(n)] for n in (name, base))
        picks = np.random.default_rng(0).integers(0, len(fast), (2000, len(fast)))
        samples = slow[picks].sum(1) / fast[picks].sum(1)
        low, high = np.quantile(samples, [0.025, 0.975])
        return float(slow.sum() / fast.sum()), float(low), float(high)

    def tok_per_s(self, name: str) -> float:
        """Tokens over seconds, all prompts together."""
        return float(self.num_tokens.sum() / self.seconds[self.names.index(name)].sum())


def measure(
    methods: dict[str, Method], prompts: Sequence[list[int]], repeats: int, base: str
) -> Timing:
    """Time each method on each prompt, interleaved, starting with another method every time."""
    names = list(methods)
    seconds = np.zeros((repeats, len(names), len(prompts)))
    identical = dict.fromkeys(names, True)
    num_tokens = np.zeros(len(prompts))
    for method in methods.values():
        method(prompts[0])
    rounds = [(r, p) for r in range(repeats) for p in range(len(prompts))]
    for turn, (repeat, index) in enumerate(track(rounds, console=Console(stderr=True))):
        answers = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
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


def save(path: str | None, results: dict[str, Any]) -> None:
    """Write results with what they were measured on; the last line printed is the same JSON."""
    record = {
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": COMMIT,
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} thread(s)",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        **results,
    }
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))
