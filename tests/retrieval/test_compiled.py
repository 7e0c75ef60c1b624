"""The cache of compiled functions on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

MODULE = """
from typing import NamedTuple
from draftwise.compiled import compiled

class {name}(NamedTuple):
    first: int
    second: int

@compiled
def add(pair):
    return pair.first + pair.second
"""
PROGRAM = """
import planted
print(planted.add(planted.{name}(2, 3)), sum(planted.add.stats.cache_hits.values()))
"""


def answer(folder: Path, name: str) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", PROGRAM.format(name=name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def renamed(folder: Path) -> str:
    (folder / "planted.py").write_text(MODULE.format(name="Numbers"))
    return "Numbers"


def damaged(folder: Path) -> str:
    (index,) = (folder / "cache").rglob("*.nbi")
    index.write_bytes(index.read_bytes()[:-9])
    return "Pair"


def test_a_cache_that_cannot_be_read_is_replaced(tmp_path: Path) -> None:
    """The index was cut off, or a class that it names is gone."""
    (tmp_path / "planted.py").write_text(MODULE.format(name="Pair"))
    for change in (lambda _: "Pair", damaged, renamed):
        name = change(tmp_path)
        assert [answer(tmp_path, name) for _ in range(2)] == ["5 0", "5 1"]
