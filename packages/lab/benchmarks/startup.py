"""Processor seconds until ``import draftwise`` and ``draftwise --help`` are through, from nothing.

Seconds of the processor, user and system, of a whole process, so that a busy machine says the
same; the median of some runs, after one that fills the disk cache and is not counted.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

from shared.results import save

LINES = {
    "pass": ["-c", "pass"],
    "import draftwise": ["-c", "import draftwise"],
    "draftwise --help": ["-m", "draftwise", "--help"],
    "draftwise models": ["-m", "draftwise", "models"],
}


def processor_s(line: list[str]) -> float:
    """Of one run of this interpreter with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *line], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out")
    options = parser.parse_args()
    found = {}
    for name, line in LINES.items():
        _, *counted = (processor_s(line) for _ in range(options.repeats + 1))
        found[name] = round(statistics.median(counted), 3)
        print(f"{name:20} {found[name]:.3f} s")
    save(options.out, {"startup_s": found})


if __name__ == "__main__":
    main()
