"""``benchmarks heads`` with a tiny model: a head from nothing, also after interruptions."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import draftwise
from chatting import save_chat_model
from draftwise.nn.eagle_files import load_head
from draftwise.nn.load import load_model
from draftwise_lab.train.turns import TEMPLATES, made_turns

FOLDER = Path(draftwise.__file__).parents[2] / "packages" / "lab" / "benchmarks"
CHAT = "I promised to bring a salad to a barbecue tomorrow. Something simple with tomatoes, please."
AVOIDED = "Write a limerick about a bicycle that dreams of winning the Tour de France one day"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("heads")
    monkeypatch.setattr(module, "LONGEST_ANSWER", 8)
    return module


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("target"))


def command(script: ModuleType, target: Path, home: Path, *more: str) -> dict[str, Any]:
    """Run the benchmark in ``home``; its turns of the target's own are there already."""
    work = home / "work"
    if not work.exists():
        work.mkdir(parents=True)
        own = [f"What is the {number} best thing to do in spring?" for number in ("one", "two")]
        turns = [AVOIDED, CHAT, *own]
        turns += [f"Tell me more about {name}, please." for name in "abcdefgh"]
        rows = (json.dumps([index, text]) for index, text in enumerate(turns))
        (work / "prompts.all").write_text("\n".join(rows) + "\n")
        (home / "avoid.jsonl").write_text(json.dumps({"turns": [AVOIDED]}) + "\n")
        rows = (json.dumps({"prompt": f"Count to {n}.", "domain": "maths"}) for n in (3, 4))
        (home / "suite.jsonl").write_text("\n".join(rows) + "\n")
    sys.argv = [
        "heads.py", "--target", str(target), "--work", str(work), "--suite",
        str(home / "suite.jsonl"), "--avoid", str(home / "avoid.jsonl"), "--tokens", "40",
        "--rows", "6", "--batch-tokens", "256", "--draft-vocab", "64", "--depth", "2", "--dtype",
        "float32", "--parts", "2", "--held-out", "2", "--out", str(home / "out.json"), *more,
    ]  # fmt: skip
    script.main()
    found: dict[str, Any] = json.loads((home / "out.json").read_text())
    return found


@pytest.fixture(scope="module")
def whole(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    home = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        module = importlib.import_module("heads")
        patch.setattr(module, "LONGEST_ANSWER", 8)
        patch.setattr(sys, "argv", [])
        command(module, target, home)
    return home


def measured(found: dict[str, Any]) -> list[Any]:
    """Everything but times and paths."""
    points = [{**point, "seconds": 0} for point in found["curve"]]
    return [found["tokens"], found["answers"], points]


def test_a_head_from_nothing(target: Path, whole: Path) -> None:
    found = json.loads((whole / "out.json").read_text())
    assert found["tokens"] >= 40
    asked = [
        json.loads(line)[1] for line in (whole / "work/prompts.jsonl").read_text().split("\n")[:-1]
    ]
    own = [text for text in asked if text.startswith(("What is the", "Tell me more"))]
    assert len(asked) == len(set(asked)) >= 3 * len(own) > 0
    assert {AVOIDED, CHAT}.isdisjoint(asked)
    num = found["tokens"]
    assert [point["tokens"] for point in found["curve"]] == [0, round(num / 2), num]
    for point in found["curve"]:
        kinds = {f"{kind}, T = {heat}" for kind in ("maths", "everyday") for heat in (0, 1)}
        assert set(point["alpha"]) == kinds
        assert all(0 <= alpha <= 1 for alphas in point["alpha"].values() for alpha in alphas)
    head = load_head(whole / "work/head", load_model(target, dtype="float32", device="cpu"))
    assert head.config.draft_vocab_size == 64


@pytest.mark.parametrize("stage", ["answers", "fit", "save_head"])
def test_an_interrupted_run_goes_on(
    stage: str, script: ModuleType, target: Path, whole: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After each stage, to the result of a run without interruption."""
    with monkeypatch.context() as patch:
        patch.setattr(script, stage, interrupting(getattr(script, stage)))
        patch.setattr(sys, "argv", [])
        with pytest.raises(KeyboardInterrupt):
            command(script, target, tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    again = command(script, target, tmp_path)
    assert measured(again) == measured(json.loads((whole / "out.json").read_text()))
    weights = [home / "work/head/model.safetensors" for home in (tmp_path, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_going_on_from_a_head_keeps_a_share_of_it(
    script: ModuleType, target: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are means of those at the start and at the end, and are measured."""
    monkeypatch.setattr(sys, "argv", [])
    start = whole / "work/head"
    found = command(script, target, tmp_path, "--start", str(start), "--blend", "0.75")
    (checkpoint,) = (tmp_path / "work").glob("head-*.pt")
    trained = torch.load(checkpoint, weights_only=True)["model"]
    first, saved = (load_file(f / "model.safetensors") for f in (start, tmp_path / "work/head"))
    for name in first.keys() & dict(trained).keys() - {"d2t"}:
        mean = 0.25 * first[name].float() + 0.75 * trained[name].float()
        assert torch.allclose(saved[name].float(), mean, rtol=2**-8)
        assert not torch.equal(trained[name].bfloat16(), first[name])
    assert [point.get("blend") for point in found["curve"]] == [None, None, None, 0.75]
    assert found["curve"][-1]["alpha"] != found["curve"][-2]["alpha"]


def interrupting(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        function(*args, **options)
        raise KeyboardInterrupt

    return call


def test_turns_are_of_all_categories_and_differ() -> None:
    turns = [text for text, _ in zip(made_turns(1, ["a b c " * 60]), range(400), strict=False)]
    assert len(set(turns)) > 350
    assert not any("{" in text.split("return")[0] for text in turns)
    few = [text for text, _ in zip(made_turns(1), range(400), strict=False)]
    assert not any(text.startswith("Summar") and len(text) > 300 for text in few)
    assert len(TEMPLATES) >= 12
