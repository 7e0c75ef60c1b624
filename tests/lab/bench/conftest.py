"""One small benchmark on tiny models, run once for many tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import pair, questions, speculator
from cli.conftest import run_command

__all__ = ["pair", "questions", "speculator"]


@dataclass(frozen=True)
class Bench:
    """The files written by ``draftwise bench``."""

    folder: Path
    arguments: tuple[str, ...]

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "results.json").read_text())
        return found

    @property
    def report(self) -> str:
        return (self.folder / "report.html").read_text("utf-8")


@pytest.fixture(scope="session")
def bench(
    pair: tuple[Path, Path], questions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    """Presets, fixed plans and other libraries' methods on two domains with three questions."""
    folder = tmp_path_factory.mktemp("bench")
    methods = ["metasd", "hedgespec", "draftwise", "fixed", "fixed:smallx3", "peers"]
    arguments = (
        "--suite", f"spec-bench:{questions}", "--out", str(folder), "--target", str(pair[0]),
        "--drafter", f"small=lm:{pair[1]}", "--drafter", "lookup", "--tokens", "20",
        "--repeats", "2", *(part for method in methods for part in ("--method", method)),
    )  # fmt: skip
    ran = run_command("bench", *arguments)
    assert ran.code == 0, ran.err
    return Bench(folder, arguments)
