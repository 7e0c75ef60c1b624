"""``benchmarks gpu_own`` on a CPU with a tiny model."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import draftwise
from chatting import save_chat_model

FOLDER = Path(draftwise.__file__).parents[2] / "packages" / "lab" / "benchmarks"


def test_every_method_is_measured_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script, out = importlib.import_module("gpu_own"), tmp_path / "out.json"
    target = save_chat_model(tmp_path / "target")
    monkeypatch.setattr(
        sys, "argv",
        ["gpu_own.py", "--device", "cpu", "--targets", str(target), "--dtypes", "float32",
         "--requests", "1", "2", "--tokens", "6", "--blocks", "2", "--seconds", "60", "--out",
         str(out)],
    )  # fmt: skip
    script.main()
    rows = {(r["requests"], r["method"]): r for r in json.loads(out.read_text())["rows"]}
    methods = ("plain", "draftwise", "transformers")
    both = {(num, name) for num in (1, 2) for name in methods}
    assert set(rows) == both | {(1, "transformers:lookup")}
    for row in rows.values():
        assert row["equal texts"] == 1.0  # in float32; a random model's logits are far apart
        assert row["tok_per_s"] > 0
    assert rows[1, "plain"]["over plain"][0] == rows[2, "plain"]["over plain"][0] == 1.0
