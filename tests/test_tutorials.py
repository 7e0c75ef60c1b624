"""The tutorials, from top to bottom: their blocks run as a reader would run them."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from draftwise import registry
from draftwise.integrations.vllm import parse_options

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path for path in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}
LONGEST_S = 120


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and code of each fenced block; without a language, it is shown and not run."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(language, code) for language, code in found]


class Shell:
    """One bash for a page; a block that fails ends it."""

    def __init__(self, folder: Path) -> None:
        self._log, self._folder = folder / "shell.log", folder
        log = self._log.open("wb")
        line = ["bash", "-euo", "pipefail"]
        self._bash = subprocess.Popen(
            line, cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        assert self._bash.stdin is not None
        self._stdin = self._bash.stdin

    def run(self, code: str) -> None:
        """Wait for a block; AssertionError, with what was printed, if a line of it fails."""
        done = self._folder / ".done"
        self._stdin.write(f"{{\n{code}\n}} </dev/null\ntouch .done\n".encode())
        self._stdin.flush()
        end = time.monotonic() + LONGEST_S
        while not done.exists():
            assert self._bash.poll() is None, self._log.read_text()
            assert time.monotonic() < end, f"too long: {code}"
            time.sleep(0.02)
        done.unlink()

    def close(self) -> None:
        """End it, and what it left in the background."""
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        with suppress(BrokenPipeError):  # it ended before it read all of a block
            self._stdin.close()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A bash in an empty folder, where this draftwise is the command ``draftwise``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("PORT", str(free.getsockname()[1]))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in {"draftwise": "-m draftwise", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    folder = tmp_path / "fresh"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = Shell(folder)
    yield made
    made.close()


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"vllm"}))
def test_a_tutorial_runs(name: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "POLICIES", dict(registry.POLICIES))
    names: dict[str, object] = {"__name__": "__main__"}
    ran = 0
    for language, code in blocks(PAGES[name]):
        if language == "python":
            exec(compile(code, f"{name}.md", "exec"), names)
        elif language == "bash":
            shell.run(code)
        ran += language in {"python", "bash"}
    assert ran >= 3


def test_a_failing_line_of_a_block_fails(shell: Shell) -> None:
    shell.run("NAME=kept")
    shell.run("test $NAME = kept")
    with pytest.raises(AssertionError, match="no such word"):
        shell.run("echo no such word; false; true")


def test_the_options_shown_for_vllm_are_options() -> None:
    """The rest of that page is run by ``make test-vllm``."""
    page = PAGES["vllm"].read_text("utf-8")
    (shown,) = re.findall(r"--additional-config '(.*?)'", page)
    parse_options(json.loads(shown)["draftwise"])
    (code, _) = (code for language, code in blocks(PAGES["vllm"]) if language == "python")
    given = [x for x in ast.walk(ast.parse(code)) if isinstance(x, ast.keyword)]
    (config,) = (x for x in given if x.arg == "additional_config")
    assert parse_options(ast.literal_eval(config.value)["draftwise"]).state is None
