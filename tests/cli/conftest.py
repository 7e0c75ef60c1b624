"""Models on disk, made once, and a helper that runs commands in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.models_on_disk import save_pair
from draftwise.cli import app


@dataclass(frozen=True)
class Ran:
    """A command's result; ``err`` is stderr without the lines about loading."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects of stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def refusal(self) -> str:
        """The one line on stderr of a refused command."""
        assert (self.code, self.out) == (2, "")
        assert self.err.count("\n") == 1, self.err
        return self.err


Run = Callable[..., Ran]


def run_command(*args: object, input_: str | None = None) -> Ran:
    """Run ``draftwise`` in this process and raise unexpected errors."""
    result = CliRunner().invoke(app, [str(a) for a in args], input=input_, catch_exceptions=False)
    said = (line for line in result.stderr.splitlines(True) if not line.startswith("loading "))
    return Ran(result.exit_code, result.stdout, "".join(said))


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a target and of a drafter for it."""
    return save_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture
def generate(pair: tuple[Path, Path]) -> Run:
    """``draftwise generate`` on the tiny pair."""

    def run(*args: object, input_: str | None = None) -> Ran:
        models = ("--target", pair[0], "--drafter", f"lm:{pair[1]}")
        return run_command("generate", *args, *models, input_=input_)

    return run
