"""The exploration run ("first look") and its files, also when it is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwise import Speculator
from draftwise_lab.bench.contest import measure
from draftwise_lab.bench.records import ContestSettings, prepare


def test_it_is_counted_before_the_turns(
    speculator: Speculator, questions: Path, tmp_path: Path
) -> None:
    wish = ContestSettings(str(questions), tmp_path, ("plain", "fixed"), tokens=4, repeats=1)
    suite, store = prepare(wish)
    told: list[tuple[str, int, int]] = []
    found = measure(wish, suite, store, speculator, lambda: True, lambda *facts: told.append(facts))
    assert found is not None
    assert [facts for facts in told if facts[0] == "first look"] == [
        ("first look", 1, 3), ("first look", 2, 3), ("first look", 3, 3),
    ]  # fmt: skip
    assert any(name.startswith("fixed:") for name in found.results["methods"])
    assert tmp_path / "trace.jsonl" in found.paths


def test_one_that_ends_early_leaves_no_trace_and_is_made_again(
    speculator: Speculator, questions: Path, tmp_path: Path
) -> None:
    wish = ContestSettings(str(questions), tmp_path, ("plain", "fixed"), tokens=4, repeats=1)
    suite, store = prepare(wish)
    told: list[tuple[str, int, int]] = []

    def report(*facts: Any) -> None:
        told.append(facts)

    assert measure(wish, suite, store, speculator, lambda: len(told) < 2, report) is None
    assert told == [("first look", 1, 3), ("first look", 2, 3)]
    assert store.settings() is None
    assert not (tmp_path / "trace.jsonl").exists()
    told.clear()
    suite, store = prepare(wish)
    found = measure(wish, suite, store, speculator, lambda: True, report)
    assert found is not None
    assert told[:3] == [("first look", 1, 3), ("first look", 2, 3), ("first look", 3, 3)]
    assert (tmp_path / "trace.jsonl").exists()
