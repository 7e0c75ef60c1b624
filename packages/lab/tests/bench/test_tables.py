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


def test_the_engine_is_compared_with_plain_at_every_load(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 4, 16 and 64, and joining requests; each row names the speed it is relative to."""
    for name in [name for name in sys.modules if name.split(".")[0] == "engine"]:
        monkeypatch.delitem(sys.modules, name)  # a folder of tests has the same name
    engine = importlib.import_module("engine")
    monkeypatch.delitem(sys.modules, "engine")
    speed = {"draftwise": 3.0, "plain": 2.0}
    monkeypatch.setattr(engine, "all_at_once", lambda made, prompts, num, preset: speed[preset])
    monkeypatch.setattr(
        engine, "joining", lambda made, given, num, preset, most: most * speed[preset]
    )
    monkeypatch.setattr(engine, "in_batches", lambda made, given, num: 40.0)
    found = {"engine_together": {"together": engine.together(None, 2)}}
    found["engine_arrivals"] = {"arrivals": engine.arriving(None, 2)}
    assert [row["rows"] for row in found["engine_together"]["together"]] == [1, 4, 16, 64]
    load = tables.load
    monkeypatch.setattr(tables, "load", lambda name: found.get(name) or load(name))
    rows = tables.engine()
    assert "| 64 at once, relative to plain | 1.50 (1.50–1.50) |" in rows
    for arriving in ("0.5", "1.0", "2.0", "4.0", "8.0"):
        start = f"| 64 arrivals, load {arriving}, relative to"
        for most in (16, 64):
            assert f"{start} plain, at most {most} at once | 1.50 (1.50–1.50) |" in rows
        assert f"{start} static batches of 8 | 1.20 (1.20–1.20) |" in rows
