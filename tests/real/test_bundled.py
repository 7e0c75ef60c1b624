"""Files bundled for pretrained targets: small, documented, trained on no benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from draftwise import settings
from draftwise.settings import BUNDLED, check_drafter
from draftwise.types import DraftwiseError
from draftwise_lab.train import prompts as self_prompts
from draftwise_lab.train.prompts import RUN, Runs, runs, runs_of
from draftwise_zoo import PRETRAINED, RETRIEVAL, bundled, drafter_specs, own_folders, own_specs

SHARED = Path(__file__).parents[3] / "shared" / "data"
"""Benchmark data next to the repository, if any."""
MOST_BYTES = 30_000_000
OWN = [(target, folder) for target in PRETRAINED for folder in own_folders(target)]


@pytest.fixture(scope="module")
def benchmarks() -> Runs:
    files = sorted(SHARED.rglob("*.jsonl"))
    if not files:
        pytest.skip("no benchmarks beside the repository")
    found = runs_of(files)
    assert len(found) > 10_000
    return found


@pytest.mark.parametrize(("target", "folder"), OWN)
def test_no_prompt_is_of_a_benchmark(target: str, folder: Path, benchmarks: Runs) -> None:
    lines = (folder.parent / "prompts.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    own = [row["prompt"] if "prompt" in row else row["messages"][0]["content"] for row in rows]
    assert len(own) > 50
    assert [text for text in own if runs(text) & benchmarks] == []


class Parrot:
    """Stands in for a tokenizer; its chat template is the word "plain"."""

    chat_template = "plain"


def test_questions_of_benchmarks_are_never_written(
    benchmarks: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make_prompts`` must drop benchmark questions even if a model reproduces them exactly."""
    lines = (SHARED / "spec_bench" / "question.jsonl").read_text("utf-8").splitlines()[::9]
    asked = [json.loads(line)["turns"][0] for line in lines]
    long = [text for text in asked if len(re.findall(r"\w+", text)) >= RUN]
    own = [f"How many apples are {n} apples and some pears?" for n in ("two", "nineteen", "no")]
    said = [*long, *own]
    monkeypatch.setattr(
        self_prompts,
        "sample_prompts",
        lambda *_, first, **__: ((first + i, text) for i, text in enumerate(said)),
    )
    monkeypatch.setattr(self_prompts, "_template_text", lambda _: "You are a helpful assistant")
    model: Any = None
    texts, share = self_prompts.make_prompts(model, Parrot(), 1, tmp_path / "all", avoid=benchmarks)
    assert len(long) > 30
    assert texts
    assert set(texts) <= set(own)
    assert f"{len(long)} of a benchmark" in share


@pytest.mark.parametrize(("target", "folder"), OWN)
def test_every_drafter_has_a_card_and_stays_small(target: str, folder: Path) -> None:
    card = (folder / "README.md").read_text("utf-8")
    for word in ("data", "steps", "depth", "licence"):
        assert word in card.lower()
    assert sum(file.stat().st_size for file in folder.parent.rglob("*")) < MOST_BYTES


def test_a_target_drafts_with_retrieval_and_its_own() -> None:
    for target in PRETRAINED:
        found = drafter_specs(target)
        assert tuple(found[:2]) == RETRIEVAL
        heads = [folder for folder in own_folders(target) if folder.name == "eagle"]
        assert found[2:] == [f"eagle=eagle:{folder}" for folder in heads]
    assert drafter_specs("some/other.gguf") == list(RETRIEVAL)


def test_what_comes_along_is_named_by_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """``smollm2`` is all its drafters, ``smollm2:NAME`` one; refusals list the names."""
    there = {"eagle": "eagle:PATH", "eagle-2": "eagle:OTHER"}
    monkeypatch.setattr("draftwise_zoo.own_specs", {"smollm2": there, "gemma3": {}}.__getitem__)
    everything = ["eagle=eagle:PATH", "eagle-2=eagle:OTHER"]
    assert settings.expand(["lookup", "smollm2"]) == ["lookup", *everything]
    assert settings.expand(["smollm2:eagle-2,depth=2"]) == ["eagle-2=eagle:OTHER,depth=2"]
    with pytest.raises(DraftwiseError, match=r"no smollm2 drafter 'x'; there are: eagle, eagle-2"):
        settings.expand(["smollm2:x"])
    assert (settings.ZOO, *PRETRAINED) == BUNDLED
    for name in ("zoo", "gemma3"):
        with pytest.raises(DraftwiseError, match=f"no {name} drafter 'layer'"):
            check_drafter(f"{name}:layer")
    with pytest.raises(DraftwiseError, match="drafter smollm2:layer has been removed: write"):
        check_drafter("smollm2:layer")  # commands ask this before they load anything
    with pytest.raises(DraftwiseError, match=r"unknown drafter 'smollm3'; .* zoo, smollm2, gemma3"):
        check_drafter("smollm3:layer")


def test_own_drafters_are_heads(tmp_path: Path) -> None:
    (tmp_path / "smollm2" / "eagle").mkdir(parents=True)
    (tmp_path / "smollm2" / "eagle" / "config.json").write_text("{}")
    (tmp_path / "smollm2" / "prompts.jsonl").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "_WEIGHTS", tmp_path)
        assert own_specs("smollm2") == {"eagle": f"eagle:{tmp_path / 'smollm2' / 'eagle'}"}
        assert own_specs("gemma3") == own_specs("./smollm2") == {}
