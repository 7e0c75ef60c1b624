"""``draftwise chat`` at a terminal: keys and pasting."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chatting import save_chat_model

PROGRAM = """
import fcntl, os, signal, sys, termios
os.setsid()
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what `&` or nohup started
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if %r: sys.modules["prompt_toolkit"] = None
sys.argv = ["draftwise", "chat", "--target", %r, "-n", "%d", "--preset", "plain"]
from draftwise.cli import main
main()
"""


class Person:
    """A user at a terminal with a chat running in it."""

    def __init__(self, folder: Path, place: Path, has_toolkit: bool, num_tokens: int = 6) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM % (not has_toolkit, str(folder), num_tokens)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=place,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "60", "NO_COLOR": "1"},
        )
        os.close(theirs)
        self._unread = ""
        self.greeting = self.reads(">")

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def sees(self, what: str, seconds: float) -> bool:
        """Whether this text appears in time."""
        end = time.monotonic() + seconds
        while what not in self._unread and time.monotonic() < end:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self._unread += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    break
        return what in self._unread

    def reads(self, what: str, seconds: float = 150) -> str:
        """Everything shown up to this text."""
        self.sees(what, seconds)
        seen, found, self._unread = self._unread.partition(what)
        assert found, seen
        return seen

    def says(self, text: str, seen: str = ">") -> str:
        self.types(text)
        return self.reads(seen)

    def leaves(self) -> None:
        os.close(self._ours)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def person(folder: Path, tmp_path: Path) -> Iterator[Person]:
    pytest.importorskip("prompt_toolkit")
    someone = Person(folder, tmp_path, has_toolkit=True)
    yield someone
    someone.leaves()


def asked(person: Person, place: Path) -> list[str]:
    """The user's messages in the saved conversation."""
    person.says("/save c.jsonl\r", "wrote c.jsonl")
    person.reads(">")
    messages = json.loads((place / "c.jsonl").read_text())["messages"]
    return [m["content"] for m in messages if m["role"] == "user"]


def test_keys_at_the_prompt(person: Person, tmp_path: Path) -> None:
    assert "not drafted" in " ".join(person.greeting.split())
    person.types("half a line")
    time.sleep(1)
    person.says("\x03", "Ctrl-D leaves")
    person.reads(">")
    person.types("\x1b[200~def f(x):\r    return x\x1b[201~")
    time.sleep(1)
    person.says("\r", "tok/s")
    person.reads(">")
    assert asked(person, tmp_path) == ["def f(x):\n    return x"]
    person.types("\x04")
    assert person.process.wait(timeout=20) == 0


def test_keys_during_an_answer_are_kept_out_of_it(folder: Path, tmp_path: Path) -> None:
    """What is typed ahead is the next message, and Ctrl-C leaves no mark."""
    pytest.importorskip("prompt_toolkit")
    person = Person(folder, tmp_path, has_toolkit=True, num_tokens=180)
    try:
        person.says("hello\r", "|")  # the model repeats itself, bars among the letters
        person.types("ahead")
        first = person.says(" of time\r", "tok/s")
        person.reads("|")
        second = person.says("\x03", "stopped")
        assert "ahead" not in first
        assert ("^C" in second, "MAT" in second) == (False, True)
        person.reads(">")
        assert asked(person, tmp_path) == ["hello", "ahead of time"]
    finally:
        person.leaves()
