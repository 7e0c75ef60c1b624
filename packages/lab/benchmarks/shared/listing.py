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
    files = [file for file in RESULTS.glob(f"{name}*.json") if _made_by(file, name)]
    seconds = [json.loads(file.read_text()).get("processor_s") for file in files]
    known = [each for each in seconds if each is not None]
    if not known:
        return ""
    return f"{max(known)} s" if max(known) < 100 else f"{round(max(known) / 60)} min"


def _made_by(file: Path, name: str) -> bool:
    owners = [each for each in names() if file.stem.startswith(each)]
    return bool(owners) and max(owners, key=len) == name


def rows_of_the_list() -> list[list[str]]:
    return [[f"`{name}`", shows(name), took(name)] for name in names()]
