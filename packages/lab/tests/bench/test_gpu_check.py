"""``benchmarks gpu_check`` on a simulated engine: the reported numbers are the planted ones."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import draftwise

FOLDER = Path(draftwise.__file__).parents[2] / "packages" / "lab" / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu_check")


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *options])
    script.main()


@pytest.fixture
def found(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    out = tmp_path / "out.json"
    run(script, monkeypatch, "--dry", "--requests", "1", "4", "--tokens", "40", "--out", str(out))
    return json.loads(out.read_text())


def test_steps_are_measured_and_compared(found: dict[str, Any]) -> None:
    rows = {(row["method"], row["requests"]): row for row in found["steps"]}
    assert set(rows) == {
        (name, size) for name in ("none", "eagle3 3", "eagle3 5", "draftwise") for size in (1, 4)
    }
    for (name, size), row in rows.items():
        length = {"none": 0, "eagle3 3": 3}.get(name, 5)
        wanted_ms = 8 + 0.02 * size * (1 + length) + 0.5 * length
        assert row["step_ms"] == pytest.approx(wanted_ms, abs=1e-3)
        if name == "draftwise":
            assert row["tokens_each"] is None
            continue
        assert row["tokens_each"] == length + 1
        assert 5 < row["composed_ms"] < 12  # an 8B model on an H100
        assert row["measured_over_composed"] == pytest.approx(
            row["step_ms"] / row["composed_ms"], abs=1e-3
        )
    assert rows["none", 4]["emitted_each"] == 1
    assert 2 < rows["eagle3 3", 4]["emitted_each"] < 4


def test_speeds_follow_from_the_steps(found: dict[str, Any]) -> None:
    assert found["is_made_up"]
    rows = {(row["method"], row["requests"]): row for row in found["speeds"]}
    for size in (1, 4):
        assert rows["none", size]["x_plain"] == [1.0, 1.0, 1.0]
        assert rows["eagle3 3", size]["x_plain"][0] > 2
        mine = rows["draftwise", size]
        assert mine["best_other"] == "eagle3 3"
        assert mine["x_best"][0] < 1  # the simulated draftwise always drafts five tokens
        assert mine["same_answers"] == 1


def test_cells_are_of_requests_and_rounds(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    options = ("--requests", "2", "--rounds", "1", "4", "--tokens", "12", "--blocks", "2")
    run(script, monkeypatch, "--dry", *options, "--out", str(out))
    found = json.loads(out.read_text())
    cells = {(row["requests"], row["rounds"]) for row in found["speeds"]}
    assert cells == {(row["requests"], row["rounds"]) for row in found["steps"]} == {(2, 1), (2, 4)}
    plain = {row["rounds"]: row for row in found["steps"] if row["method"] == "none"}
    assert plain[4]["num_steps"] > 3 * plain[1]["num_steps"]
