"""One small benchmark on tiny models, run once for many tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import Bench

from bench.conftest import pair, questions, speculator
from cli.conftest import run_command

__all__ = ["pair", "questions", "speculator"]


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
    ran = run_command("contest", *arguments)
    assert ran.code == 0, ran.err
    return Bench(folder, arguments)
