"""Processor seconds of ``import draftwise`` and ``draftwise --help`` in a new process.

User plus system seconds of the whole process: the median of several runs, after one uncounted run
that fills the disk cache.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from typing import Any

from shared.child import child_seconds
from shared.script import run, show

LINES = {
    "pass": ["-c", "pass"],
    "import draftwise": ["-c", "import draftwise"],
    "draftwise --help": ["-m", "draftwise", "--help"],
    "draftwise models": ["-m", "draftwise", "models"],
}


def processor_s(line: list[str]) -> float:
    with child_seconds() as spent:
        subprocess.run([sys.executable, *line], check=True, stdout=subprocess.DEVNULL)
    return spent[0]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for name, line in LINES.items():
        _, *counted = (processor_s(line) for _ in range(args.repeats + 1))
        found[name] = round(statistics.median(counted), 3)
    show([found])
    return {"startup_s": found}


if __name__ == "__main__":
    run(__doc__, measure, repeats=9)
