"""Licences of all dependencies are known and allowed."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "licences.py"))


def test_every_licence_is_on_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    SCRIPT["main"]()
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"torch", "transformers", "uvicorn", "matplotlib"} <= set(names)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0", True),
        ("Apache-2.0 AND GPL-3.0", False),
        ("GNU Affero General Public License v3", False),
        ("LIMITED use", False),
        ("unknown", False),
    ],
)
def test_what_is_known(text: str, known: bool) -> None:
    assert SCRIPT["is_known"](text) is known
