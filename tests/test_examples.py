"""The examples in docstrings produce the output shown."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import draftwise

ROOT = Path(draftwise.__file__).parents[1]
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted(ROOT.glob("draftwise/**/*.py"))
    if ">>> " in file.read_text("utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert done.attempted > 0
    assert done.failed == 0
