"""Results of the benchmarks: one schema, one writer, one reader.

A file is a JSON object: how it was made (``HEADER``), and the measurements by name. ``draftwise
bench`` stores the same facts in ``environment``.
"""

from __future__ import annotations

import json
import platform
import resource
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from draftwise.bench.results import versions
from draftwise_lab.bench.commit import commit

COMMIT = commit() or ""
"""Commit of the running code, read at start-up, since a commit may follow during the run."""
FOLDER = Path(__file__).parents[4] / "benchmarks" / "results"
HEADER: dict[str, type] = {
    "command": str, "date": str, "commit": str, "hardware": str, "versions": dict,
}  # fmt: skip
"""Fields of every file's header; files written since 0.2.0 also have ``processor_s``."""


def save(path: str | Path | None, results: Mapping[str, Any]) -> None:
    """Write results with their header, and print the same JSON as the last line."""
    record = {**header(), **results}
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


def header() -> dict[str, Any]:
    """How a file was made; processor_s: of this command so far, including child processes."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    words = ["python", "-m", "benchmarks", Path(sys.argv[0]).stem, *sys.argv[1:]]
    return {
        "command": shlex.join(words).replace(f"{Path.cwd()}/", ""),
        "date": time.strftime("%Y-%m-%d"),
        "commit": COMMIT,
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} thread(s)",
        "versions": versions(),
        "processor_s": round(sum(each.ru_utime + each.ru_stime for each in used)),
    }


def load(name: str) -> dict[str, Any]:
    """Load ``results/NAME.json``; ValueError if its header is incomplete."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    about = found | found.get("environment", {}) | {"hardware": found.get("hardware", "")}
    if "environment" in found:
        about["hardware"] = found["environment"]["cpu"]
    for key, kind in HEADER.items():
        if not isinstance(about.get(key), kind) or not about[key]:
            raise ValueError(f"{name}.json has no {key}: write it with shared.results.save")
    return found
