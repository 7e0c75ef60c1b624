"""The exploration run ("first look") and its files, also when it is interrupted."""

from __future__ import annotations

from pathlib import Path

from draftwise import Speculator
from draftwise_lab.bench import ContestSettings, measure, prepare


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
