"""The list of the benchmarks, with the processor time of each."""

from __future__ import annotations

import ast
import json
from pathlib import Path

HERE = Path(__file__).parents[1]
RESULTS = HERE.parents[2] / "benchmarks" / "results"


def names() -> list[str]:
    return sorted(file.stem for file in HERE.glob("[a-z]*.py"))


def shows(name: str) -> str:
    about = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text("utf-8"))) or ""
    return about.partition("\n")[0].removesuffix(".").replace("``", "`")


def took(name: str) -> str:
    """Processor time of the longest run in results/; empty if unknown."""
    seconds = 0
    for file in RESULTS.glob(f"{name}*.json"):
        owners = [each for each in names() if file.stem.startswith(each)]
        if max(owners, key=len) == name:
            seconds = max(seconds, json.loads(file.read_text()).get("processor_s", 0))
    if not seconds:
        return ""
    return f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"


def rows_of_the_list() -> list[list[str]]:
    return [[f"`{name}`", shows(name), took(name)] for name in names()]
