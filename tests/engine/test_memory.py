"""Policy state across requests: scopes, files, refusals."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from draftwise import DraftwiseError, Speculator
from draftwise.controller.goodput import Goodput
from draftwise.state import UnusableState, hold
from engine.pairs import POOLS, speculator
from small_disk import files_of_at_most

OPTIONS = {"max_new_tokens": 30}
PROMPT = [3, 5, 8, 3, 5, 8]


def made(scope: str, policy: str = "goodput") -> Speculator:
    return speculator(POOLS["all"], policy, scope=scope)


def learnt(speculator: Speculator) -> dict[str, Any]:
    """What the requests of a speculator have learnt."""
    assert speculator.memory.shared is not None
    return speculator.memory.shared.state()


def test_a_loaded_memory_goes_on_as_the_saved_one_would(tmp_path: Path) -> None:
    first, second = (
        speculator(POOLS["all"], "goodput", scope="task:a", deterministic=True) for _ in range(2)
    )
    first.generate(PROMPT, **OPTIONS)
    first.memory.save(tmp_path / "state.json")
    second.memory.load(tmp_path / "state.json")
    assert learnt(second) == learnt(first)
    pulls = [spec.generate(PROMPT, **OPTIONS).stats.pulls for spec in (first, second)]
    assert pulls[0] == pulls[1]


def test_other_tasks_in_a_file_are_neither_taken_up_nor_lost(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    first, other, fresh = made("task:a"), made("task:b"), made("task:b")
    first.generate(PROMPT, **OPTIONS)
    first.memory.save(path)
    other.memory.load(path)
    assert learnt(other) == learnt(fresh)
    other.memory.save(path)
    assert set(json.loads(path.read_text())["learnt"]["scopes"]) == {"task:a", "task:b"}


@pytest.mark.parametrize("scope", ["session", "task:a", "auto"])
def test_rows_that_share_what_they_learn_have_each_their_own_match(scope: str) -> None:
    """With a shared match, one row's match would price the other row's retrieval."""
    engine = (shared := made(scope)).engine()
    rows = [shared.request(text, max_new_tokens=8, ignore_eos=True) for text in ([7, 7, 7, 7], [5])]
    for row in rows:
        engine.admit(row)
    for _ in range(3):  # the first two rounds measure plain decoding
        engine.step()
    for row in rows:
        assert isinstance(row.decider.policy, Goodput)
        matches = engine._drafting.matches(row.context)
        assert matches
        assert row.decider.policy._matches == matches
    assert rows[0].decider.policy is not rows[1].decider.policy


def test_what_cannot_be_taken_up_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    saved = made("session")
    saved.memory.save(path)
    whole = json.loads(path.read_text())
    reader = made("session")
    before = learnt(reader)
    wrong = {
        "its version": whole | {"draftwise": 99},
        "it was learnt with the policy": whole | {"about": {"policy": "exp3"}},
        "it is not a state": {"a": 1},
        "not the statistics of requests": whole
        | {"learnt": whole["learnt"] | {"scopes": {"session": {"nonsense": 1}}}},
        "its scopes are no table": whole | {"learnt": {"saved": {}, "scopes": []}},
        "its 'learnt' is no table": whole | {"learnt": [1]},
    }
    for said, content in wrong.items():
        path.write_text(json.dumps(content))
        with pytest.raises(DraftwiseError, match=said):
            reader.memory.load(path)
    path.write_text("{")
    with pytest.raises(DraftwiseError, match="cannot load"):
        reader.memory.load(path)
    assert learnt(reader) == before


@pytest.mark.parametrize(
    ("scope", "policy"), [("request", "goodput"), ("auto", "ucb1"), ("session", "ucb1")]
)
def test_what_keeps_nothing_is_neither_saved_nor_loaded(
    scope: str, policy: str, tmp_path: Path
) -> None:
    memory, path = made(scope, policy).memory, tmp_path / "state.json"
    said = f"the policy {policy} with the scope {scope} keeps nothing between runs: use the policy"
    for act in (memory.save, memory.load):
        with pytest.raises(DraftwiseError, match=said):
            act(path)


def test_an_unknown_scope_is_refused() -> None:
    for scope in ("task:", "requests", ""):
        with pytest.raises(DraftwiseError, match="unknown scope"):
            made(scope)


def test_requests_of_scope_auto_learn_from_those_before_them(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    first, second = made("auto"), made("auto")
    assert first.memory.policy is None
    for _ in range(3):
        first.generate(PROMPT, **OPTIONS)
    first.memory.save(path)
    second.memory.load(path)
    second.memory.save(tmp_path / "again.json")
    files = [json.loads(file.read_text()) for file in (tmp_path / "again.json", path)]
    assert files[0]["learnt"]["scopes"] == files[1]["learnt"]["scopes"]
    assert json.loads(path.read_text())["learnt"]["scopes"]["auto"]["answers"][1] == 4.0


def test_links_are_neither_written_through_nor_replaced(tmp_path: Path) -> None:
    memory, victim, real = made("session").memory, tmp_path / "victim.txt", tmp_path / "real.json"
    victim.write_text("precious")
    for name in ("a.json.part", ".a.json.part"):
        (tmp_path / name).symlink_to(victim)
    memory.save(tmp_path / "a.json")
    assert victim.read_text() == "precious"
    real.write_text("{}")
    (tmp_path / "link.json").symlink_to(real)
    with pytest.warns(UserWarning, match="it is kept as"):
        memory.save(tmp_path / "link.json")
    memory.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["learnt"]["scopes"]


@pytest.mark.parametrize("kind", ["pipe", "loop", "socket"])
def test_what_is_no_plain_file_is_neither_replaced_nor_renamed(kind: str, tmp_path: Path) -> None:
    """Saving as root would otherwise replace ``/dev/null`` for the whole machine."""
    path, memory = tmp_path / kind, made("session").memory
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    else:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(path))
    before = path.lstat()
    with pytest.raises(OSError, match=r"no plain file|symbolic links"):
        memory.save(path)
    if kind != "loop":  # ``exists`` is false for a link to itself
        with pytest.raises(OSError, match="no plain file"):
            memory.load_or_set_aside(path)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert [file.name for file in tmp_path.iterdir() if "lock" not in file.name] == [kind]


def test_a_path_that_is_a_link_stays_one(tmp_path: Path) -> None:
    memory, real, link = made("session").memory, tmp_path / "real.json", tmp_path / "link.json"
    memory.save(real)
    link.symlink_to(real)
    before = real.read_text()
    memory.save(link)
    assert link.is_symlink()
    assert real.read_text() != before


def test_two_writers_of_one_file_never_fail_and_never_tear_it(tmp_path: Path) -> None:
    path, memory, errors = tmp_path / "state.json", made("session").memory, list[Exception]()

    def write() -> None:
        for _ in range(40):
            try:
                memory.save(path)
            except Exception as error:
                errors.append(error)

    memory.save(path)
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        json.loads(path.read_text())
    assert errors == []
    assert {file.name for file in tmp_path.iterdir()} == {"state.json", ".state.json.lock"}


def test_what_the_same_scope_saved_meanwhile_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    first, other = made("session"), made("session")
    first.memory.save(path)
    other.memory.load(path)
    other.generate(PROMPT, **OPTIONS)
    other.memory.save(path)
    theirs = path.read_text()
    with pytest.warns(UserWarning, match="written by someone else since it was read; it is kept"):
        first.memory.save(path)
    (aside,) = tmp_path.glob("state.json.unused-*")
    assert aside.read_text() == theirs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.memory.save(path)


def test_a_file_that_is_held_is_refused_to_others_and_open_to_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with hold(path):
        made("session").memory.save(path)
    refused = pytest.raises(DraftwiseError, match="wait until it ends")
    with hold(path, wait_s=0.01), refused, hold(path):
        pytest.fail("it was held twice")


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    memory = made("session").memory
    with pytest.raises(DraftwiseError, match=r"cannot write .*x\.json: there is no folder"):
        memory.save(tmp_path / "nodir" / "x.json")
    for path in (None, 5):
        with pytest.raises(DraftwiseError, match="path is"):
            memory.save(path)  # type: ignore[arg-type]
        with pytest.raises(DraftwiseError, match="path is"):
            memory.load(path)  # type: ignore[arg-type]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    memory, path = made("session").memory, tmp_path / "state.json"
    memory.save(path)
    before = path.read_text()
    with files_of_at_most(64), pytest.raises(OSError, match=re.escape(str(path))):
        memory.save(path)
    assert path.read_text() == before
    assert {file.name for file in tmp_path.iterdir()} == {"state.json", ".state.json.lock"}


@pytest.mark.parametrize("version", [7, 9, "8", None])
def test_a_file_of_another_version_is_set_aside(tmp_path: Path, version: Any) -> None:
    path, memory = tmp_path / "state.json", made("session").memory
    memory.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"draftwise": version}))
    said = memory.load_or_set_aside(path)
    assert said is not None
    assert f"its version is {version}, not 8; it is kept as {path}.unused-" in said
    assert not path.exists()
    assert memory.load_or_set_aside(path) is None


def test_a_file_of_other_options_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    made("session").memory.save(path)
    with pytest.raises(
        DraftwiseError, match=r"learnt with the policy goodput, not goodput:prior=0\.5"
    ) as e:
        made("session", "goodput:prior=0.5").memory.load_or_set_aside(path)
    assert not isinstance(e.value, UnusableState)
    assert path.exists()


MUTATIONS = {
    "infinite": "1e999",
    "negative": "-5",
    "text": '"x"',
    "nested": "[" * 50 + "]" * 50,
    "400 digits": "9" * 400,
    "null": "null",
    "true": "true",
    "huge": "1e300",
}


def test_a_hostile_number_is_refused_or_harmless(tmp_path: Path) -> None:
    """With any number of a saved state mutated, the file is refused or requests still run."""
    saved, path = made("session"), tmp_path / "state.json"
    saved.generate(PROMPT, **OPTIONS)
    saved.memory.save(path)
    text = path.read_text()
    start = text.index('"scopes"')
    places = [
        m for m in re.finditer(r"(?<![\w\"])-?\d+(\.\d+)?(e-?\d+)?", text) if m.start() > start
    ]
    reader, refused = made("session"), 0
    before = learnt(reader)
    for place in places[:: max(1, len(places) // 40)]:
        for mutation in MUTATIONS.values():
            path.write_text(text[: place.start()] + mutation + text[place.end() :])
            try:
                reader.memory.load(path)
            except UnusableState:
                refused += 1
                assert learnt(reader) == before
                continue
            reader.generate(PROMPT, max_new_tokens=3)
            reader = made("session")
    assert refused
