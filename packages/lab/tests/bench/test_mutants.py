"""``benchmarks mutants`` names modules and tests that exist."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import draftwise

PRODUCT = Path(draftwise.__file__).parent
ROOT = PRODUCT.parents[1]


def test_every_module_and_every_test_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "packages" / "lab" / "benchmarks"))
    script = importlib.import_module("mutants")
    for module, tests in script.MODULES.items():
        assert (PRODUCT / f"{module}.py").is_file()
        assert tests
        assert [test for test in tests if not (ROOT / test).is_file()] == []
