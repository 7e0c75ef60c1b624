"""``benchmarks printed_speed`` on a tiny chat model."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path

import pytest

import draftwise
from chatting import save_chat_model

FOLDER = Path(draftwise.__file__).parents[2] / "packages" / "lab" / "benchmarks"


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script, work = importlib.import_module("printed_speed"), tmp_path / "work"
    questions = tmp_path / "questions.txt"
    questions.write_text("a b\nb c\n")
    args = Namespace(
        target=str(save_chat_model(tmp_path / "target")), drafter=["lookup"],
        suite=str(questions), temperature=0.0, tokens=[6], answers=2, work=work,
    )  # fmt: skip
    script.measure(args)
    before = (work / "6.jsonl").read_text()
    (work / "6.jsonl").write_text(before + "[2, 2, 0.0")  # ended while it wrote
    args.answers = 12
    found = script.measure(args)["speeds"]
    lines = (work / "6.jsonl").read_text().splitlines()
    assert lines[:2] == before.splitlines()
    assert [json.loads(line)[:2] for line in lines] == [
        *([0, 0], [1, 1]),
        *([index, index - 2] for index in range(2, 12)),  # number in its own process
    ]
    assert {name: row["answers"] for name, row in found.items()} == {
        "6 tokens, all": 12,
        "6 tokens, first": 12,
    }
    monkeypatch.setattr(script, "FIRST", 8)
    assert script.measure(args)["speeds"]["6 tokens, later"]["answers"] == 2
    args.temperature = 1.0
    with pytest.raises(SystemExit, match="other settings"):
        script.measure(args)
