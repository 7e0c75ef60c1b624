"""The state file: whole or not at all, set aside when broken, and never in the way."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from draftwise.serve import Keeper
from draftwise.types import DraftwiseError

EVERY_S = 20.0


class Learnt:
    """Something that was learnt: a number."""

    def __init__(self) -> None:
        self.number, self.fails = 0, False

    def save(self, path: str | Path) -> None:
        if self.fails:
            raise OSError("no space left on device")
        Path(path).write_text(str(self.number))

    def load(self, path: str | Path) -> None:
        try:
            self.number = int(Path(path).read_text("utf-8"))
        except ValueError as error:
            raise DraftwiseError(f"cannot take up {path}: {error}") from error


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def made(tmp_path: Path) -> tuple[Keeper, Learnt, Clock, Path]:
    learnt, clock, path = Learnt(), Clock(), tmp_path / "state.json"
    return Keeper(learnt, path, EVERY_S, clock), learnt, clock, path


def test_written_while_running_but_not_too_often(made: Any) -> None:
    keeper, learnt, clock, path = made
    assert keeper.turn() is None, "nothing was learnt"
    learnt.number = 1
    keeper.touch()
    assert keeper.turn() == pytest.approx(EVERY_S)
    assert not path.exists()
    clock.now += EVERY_S
    assert keeper.turn() is None
    assert path.read_text() == "1"
    keeper.touch()
    learnt.number = 2
    keeper.turn()
    assert path.read_text() == "1"
    keeper.write()
    assert path.read_text() == "2"


def test_taken_up_at_the_start(made: Any) -> None:
    keeper, learnt, _, path = made
    keeper.take_up()
    assert learnt.number == 0
    path.write_text("7")
    keeper.take_up()
    assert learnt.number == 7


@pytest.mark.parametrize("broken", [b"", b"half a", b"\xff\xfe"])
def test_a_broken_file_is_set_aside(
    made: Any, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, learnt, _, path = made
    path.write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        keeper.take_up()
    assert learnt.number == 0
    assert not path.exists()
    (aside,) = path.parent.glob("state.json.unused-*")
    assert aside.read_bytes() == broken
    assert "learning begins anew" in caplog.text


def test_a_full_disk_costs_the_file_only(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    keeper, learnt, clock, path = made
    learnt.fails = True
    keeper.touch()
    clock.now += EVERY_S
    with caplog.at_level(logging.WARNING):
        assert keeper.turn() is None
    assert "no space left" in caplog.text
    learnt.fails = False
    keeper.touch()
    clock.now += EVERY_S
    keeper.turn()
    assert path.exists()
