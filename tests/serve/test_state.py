"""The state file: written atomically, set aside when damaged, never blocking."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from draftwise.engine.deciders import SharedPolicyState
from draftwise.registry import make_policy
from draftwise.serve.run import StateSaver
from draftwise.types import PLAIN

EVERY_S = 20.0
ROUND: Any = object()
NO_ENGINE: Any = None


class Learnt:
    """Stands in for learned state: a number."""

    def __init__(self) -> None:
        self.number, self.fails = 0, False

    def save(self, path: str | Path) -> None:
        if self.fails:
            raise OSError("no space left on device")
        Path(path).write_text(str(self.number))

    def load_or_set_aside(self, path: Path) -> None:
        self.number = int(path.read_text("utf-8")) if path.exists() else 0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def made(tmp_path: Path) -> tuple[StateSaver, Learnt, Clock, Path]:
    learnt, clock, path = Learnt(), Clock(), tmp_path / "state.json"
    return StateSaver(learnt, path, EVERY_S, clock), learnt, clock, path


def test_written_while_running_but_not_too_often(made: Any) -> None:
    file, learnt, clock, path = made
    learnt.number = 1
    file.saw_rounds([ROUND], NO_ENGINE)
    assert not path.exists()
    clock.now += EVERY_S
    file.saw_rounds([], NO_ENGINE)
    assert not path.exists(), "nothing was learnt"
    file.saw_rounds([ROUND], NO_ENGINE)
    assert path.read_text() == "1"
    learnt.number = 2
    file.saw_rounds([ROUND], NO_ENGINE)
    assert path.read_text() == "1"
    file.saw_the_end()
    assert path.read_text() == "2"


def test_taken_up_at_the_start(made: Any) -> None:
    file, learnt, _, path = made
    file.load()
    assert learnt.number == 0
    path.write_text("7")
    file.load()
    assert learnt.number == 7


def learnt_by(policy: str) -> SharedPolicyState:
    return SharedPolicyState("session", make_policy(policy, 2, plans=[PLAIN, PLAIN]), policy)


@pytest.mark.parametrize("broken", [b"", b"half a", b"\xff\xfe"])
def test_a_broken_file_is_set_aside(
    tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        StateSaver(learnt_by("goodput"), path, EVERY_S).load()
    assert not path.exists()
    (aside,) = path.parent.glob("state.json.unused-*")
    assert aside.read_bytes() == broken
    assert "learning starts from scratch" in caplog.text


def test_a_full_disk_costs_the_file_only(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    file, learnt, clock, path = made
    learnt.fails = True
    clock.now += EVERY_S
    with caplog.at_level(logging.WARNING):
        file.saw_rounds([ROUND], NO_ENGINE)
    assert "no space left" in caplog.text
    learnt.fails = False
    clock.now += EVERY_S
    file.saw_rounds([ROUND], NO_ENGINE)
    assert path.exists()
