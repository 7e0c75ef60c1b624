"""Policies that outlive a request: who shares, what a file keeps, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwise import DraftwiseError, Speculator
from draftwise.policies.goodput.policy import Goodput
from engine.pairs import POOLS, speculator

OPTIONS = {"max_new_tokens": 30}
PROMPT = [3, 5, 8, 3, 5, 8]


def made(scope: str, policy: str = "ucb1:beta=0.1") -> Speculator:
    return speculator(POOLS["all"], policy, scope=scope)


def test_a_loaded_policy_goes_on_as_the_saved_one_would(tmp_path: Path) -> None:
    first, second = made("task:a"), made("task:a")
    first.generate(PROMPT, **OPTIONS)
    first.memory.save(tmp_path / "state.json")
    second.memory.load(tmp_path / "state.json")
    assert second.memory.policy is not None
    assert first.memory.policy is not None
    assert second.memory.policy.state() == first.memory.policy.state()
    pulls = [spec.generate(PROMPT, **OPTIONS).stats.pulls for spec in (first, second)]
    assert pulls[0] == pulls[1]


def test_other_tasks_in_a_file_are_neither_taken_up_nor_lost(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    first, other, fresh = made("task:a"), made("task:b"), made("task:b")
    first.generate(PROMPT, **OPTIONS)
    first.memory.save(path)
    other.memory.load(path)
    assert other.memory.policy is not None
    assert fresh.memory.policy is not None
    assert other.memory.policy.state() == fresh.memory.policy.state()
    other.memory.save(path)
    assert set(json.loads(path.read_text())["scopes"]) == {"task:a", "task:b"}


def test_default_policy_is_saved_and_loaded(tmp_path: Path) -> None:
    first, second = made("session", "goodput"), made("session", "goodput")
    first.generate(PROMPT, **OPTIONS)
    first.memory.save(tmp_path / "state.json")
    second.memory.load(tmp_path / "state.json")
    kept = [made_.memory._kept for made_ in (first, second)]
    assert kept[0] is not None
    assert kept[1] is not None
    assert kept[1].state() == kept[0].state()
    second.generate(PROMPT, **OPTIONS)
    assert kept[1].state() != kept[0].state()


@pytest.mark.parametrize("scope", ["session", "task:a", "auto"])
def test_rows_that_share_what_they_learn_have_each_their_own_match(scope: str) -> None:
    """The match of whoever learnt last would price the other row's retrieval."""
    engine = (shared := made(scope, "goodput")).engine()
    rows = [shared.request(text, max_new_tokens=8, ignore_eos=True) for text in ([7, 7, 7, 7], [5])]
    for row in rows:
        engine.admit(row)
    engine.step()
    for row in rows:
        assert isinstance(row.policy, Goodput)
        matches = engine._drafting.sessions.matches(row.context)
        assert matches
        assert row.policy._matches == matches
    assert rows[0].policy is not rows[1].policy


def test_what_cannot_be_taken_up_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    saved = made("session")
    saved.memory.save(path)
    whole = json.loads(path.read_text())
    reader = made("session")
    before = reader.memory.policy.state() if reader.memory.policy else None
    wrong = {
        "its version": whole | {"draftwise": 99},
        "it was learnt with the policy": whole | {"policy": "exp3"},
        "it was learnt with the plans": whole | {"plans": ["none"]},
        "it is not a state": {"a": 1},
        "needs": whole | {"scopes": {"session": {"nonsense": 1}}},
    }
    for said, content in wrong.items():
        path.write_text(json.dumps(content))
        with pytest.raises(DraftwiseError, match=said):
            reader.memory.load(path)
    path.write_text("{")
    with pytest.raises(DraftwiseError, match="cannot take up"):
        reader.memory.load(path)
    assert reader.memory.policy is not None
    assert reader.memory.policy.state() == before


def test_a_scope_that_keeps_nothing_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match="choose session or task:LABEL"):
        made("request").memory.save(tmp_path / "state.json")
    for scope in ("task:", "requests", ""):
        with pytest.raises(DraftwiseError, match="unknown scope"):
            made(scope)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda scope: scope["tally"]["sums"].__setitem__(0, float("nan")), "damaged"),
        (lambda scope: scope["tally"]["sums"].pop(), "damaged"),
    ],
)
def test_damaged_numbers_are_refused(tmp_path: Path, damage: Any, said: str) -> None:
    saved = made("session")
    saved.generate(PROMPT, **OPTIONS)
    saved.memory.save(tmp_path / "state.json")
    found = json.loads((tmp_path / "state.json").read_text())
    damage(found["scopes"]["session"])
    (tmp_path / "state.json").write_text(json.dumps(found))
    with pytest.raises(DraftwiseError, match=said):
        made("session").memory.load(tmp_path / "state.json")


def test_requests_of_scope_auto_learn_from_those_before_them(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    first, second = made("auto", "goodput"), made("auto", "goodput")
    assert first.memory.policy is None
    for _ in range(3):
        first.generate(PROMPT, **OPTIONS)
    first.memory.save(path)
    second.memory.load(path)
    second.memory.save(tmp_path / "again.json")
    files = [json.loads(file.read_text()) for file in (tmp_path / "again.json", path)]
    assert files[0]["scopes"] == files[1]["scopes"]
    assert json.loads(path.read_text())["scopes"]["auto"]["answers"][1] == 4.0


def test_a_memory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    spec = made("auto", "goodput")
    spec.generate(PROMPT, **OPTIONS)
    spec.memory.save(path)
    whole = json.loads(path.read_text())
    whole["scopes"]["auto"]["answers"] = [30.0, 0.0]
    path.write_text(json.dumps(whole))
    with pytest.raises(DraftwiseError, match="cannot take up"):
        spec.memory.load(path)


def test_scope_auto_of_a_policy_that_cannot_remember_keeps_nothing(tmp_path: Path) -> None:
    spec = made("auto")
    spec.generate(PROMPT, **OPTIONS)
    with pytest.raises(DraftwiseError, match="keeps nothing"):
        spec.memory.save(tmp_path / "state.json")
