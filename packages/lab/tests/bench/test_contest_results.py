"""A contest's results, and the file from which it resumes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from bench.test_results import SECONDS
from bench.test_results import made_up as product_runs
from draftwise.bench.results import make_sheet
from draftwise.types import DraftwiseError
from draftwise_lab.bench.contest import contest_results as results
from draftwise_lab.bench.records import ContestRun, RunStore, whole_turns


def made_up() -> list[ContestRun]:
    """The runs of the product's test, with what a contest records besides."""
    runs = []
    for run in product_runs():
        seconds = run.by_clock("wall")
        known = {field.name: getattr(run, field.name) for field in fields(run)}
        more = {"phases": {"verify": seconds}, "pulls": {"x": 4}, "round_s": [seconds / 4] * 4}
        runs.append(ContestRun(**known, **more))
    return runs


def test_others_are_chosen_in_hindsight() -> None:
    found = results(make_sheet(made_up(), list(SECONDS), can_compare=True))["comparisons"]
    assert found["best preset"]["methods"] == ["metasd"]
    assert found["best peer"]["methods"] == ["transformers:xx5"]
    assert found["model.generate"]["median"] == pytest.approx(10.0 / 3.0, rel=0.05)
    assert found["best assisted generation"]["methods"] == ["transformers:xx5"]
    each = found["best fixed plan of each domain"]
    assert each["methods"] == {"a": "fixed:xx2", "b": "fixed:yx2"}
    assert each["median"] == pytest.approx(2.0 / 3.0, rel=0.05)


def test_others_are_chosen_within_each_domain() -> None:
    found = results(make_sheet(made_up(), list(SECONDS), can_compare=True))["domain_comparisons"]
    assert found["a"]["best fixed plan"]["methods"] == ["fixed:xx2"]
    assert found["b"]["best fixed plan"]["methods"] == ["fixed:yx2"]
    assert found["b"]["best fixed plan"]["median"] == pytest.approx(0.5)
    assert "best fixed plan of each domain" not in found["a"]


def test_runs_come_back_and_torn_turns_do_not(tmp_path: Path) -> None:
    runs = made_up()
    store = RunStore(tmp_path / "new" / "folder")
    assert store.settings() is None
    store.begin({"tokens": 12})
    store.add(runs[:14])
    with (store.folder / "runs.jsonl").open("a") as file:
        file.write('{"method": "plain", "repeat": 0, "it')
    assert store.load(7) == runs[:14]
    store.add(runs[14:17])  # a turn in which some runs are missing
    assert store.load(7) == runs[:14]
    store.add(runs[14:21])
    assert RunStore(store.folder).load(7) == runs[:21]
    assert store.settings() == {"tokens": 12}
    assert whole_turns(runs[:9], 7) == runs[:7]


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DraftwiseError, match="results cannot go to"):
        RunStore(tmp_path / "file" / "folder")
    (tmp_path / "runs.jsonl").write_text("something else\n")
    with pytest.raises(DraftwiseError, match="no file of a bench"):
        RunStore(tmp_path).settings()


def test_what_the_report_shows_of_the_engine() -> None:
    row = results(make_sheet(made_up(), list(SECONDS), can_compare=True))["methods"]["metasd"]
    assert row["discard_rate"] == pytest.approx(8 / 12)
    assert row["verification_rate"] == pytest.approx(1 / 3)
    assert row["pulls"] == {"x": 32}
    assert row["phases"] == {"verify": pytest.approx(2.05 / 12, rel=0.1)}
