"""The results, their list, and the tables generated from them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[4]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
WITHOUT_HEADER = {"specdecpp_bundled"}
"""Results that ``draftwise sweep`` wrote without naming the machine."""


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packages" / "lab" / "benchmarks"))
    return importlib.import_module("shared.results")


@pytest.fixture
def tables(shared: ModuleType) -> ModuleType:
    return importlib.import_module("tables")


def test_every_result_says_what_it_was_made_with(shared: ModuleType) -> None:
    for file in RESULTS:
        if file.stem not in WITHOUT_HEADER:
            shared.load(file.stem)
    with pytest.raises(ValueError, match="has no command"):
        shared.load("specdecpp_bundled")


def test_a_written_result_can_be_read(
    shared: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "trees.py"), "--out", f"{tmp_path}/x.json"])
    monkeypatch.chdir(tmp_path)
    shared.save(tmp_path / "x.json", {"trees": 1})
    monkeypatch.setattr(shared, "FOLDER", tmp_path)
    found = shared.load("x")
    assert found["trees"] == 1
    assert found["command"] == "python -m benchmarks trees --out x.json"
    assert found["processor_s"] > 0


def test_no_table_was_typed_by_hand(tables: ModuleType) -> None:
    """``make bench-docs`` would change no table."""
    found = set()
    for page in tables.pages():
        text = page.read_text("utf-8")
        assert tables.rewritten(text) == text, f"{page.name}: make bench-docs"
        found |= {name for _, name, _, _ in tables.PLACE.findall(text)}
    assert {"startup", "benchmarks"} <= found <= tables.TABLES.keys()


def test_a_changed_number_is_seen(tables: ModuleType) -> None:
    page = f"<!-- table startup -->\n\n{tables.TABLES['startup']()}\n<!-- end -->\n"
    assert tables.rewritten(page) == page
    changed = page.replace("| 0.", "| 7.")
    assert changed != page
    assert tables.rewritten(changed) == page
    with pytest.raises(KeyError):
        tables.rewritten("<!-- table nonesuch -->\n<!-- end -->\n")


def test_the_entry_lists_and_runs(tmp_path: Path) -> None:
    def run(*line: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchmarks", *line]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    listing = run().stdout
    for name in ("startup", "growth", "trees"):
        assert f"`{name}`" in listing
    made = run("startup", "--repeats", "1", "--out", str(tmp_path / "x.json"))
    assert made.returncode == 0, made.stderr
    assert json.loads((tmp_path / "x.json").read_text())["startup_s"].keys() >= {"import draftwise"}
    assert "the names are: claims_hedgespec, claims_metasd" in run("nonesuch").stderr
