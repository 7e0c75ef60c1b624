"""What comes along for pretrained targets: small, described, taught no benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from draftwise.real.bundled import RETRIEVAL, drafter_specs, head_folders
from draftwise.real.catalog import PRETRAINED

SHARED = Path(__file__).parents[3] / "shared" / "data"
"""Benchmarks beside the repository, where somebody put them."""
MOST_BYTES = 30_000_000
RUN = 10
"""Words in a row that a prompt may not share with a benchmark."""
HEADS = [(target, folder) for target in PRETRAINED for folder in head_folders(target)]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + RUN]) for i in range(len(found) - RUN + 1)}


def strings(value: object) -> list[str]:
    """Every text inside a value of json."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for one in value for text in strings(one)] if isinstance(value, list) else []


def benchmark_texts() -> list[str]:
    """Every text of the benchmarks that lie beside the repository."""
    files = sorted(SHARED.rglob("*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").split("\n") if line]
    return [text for line in lines for text in strings(json.loads(line))]


def test_overlap_is_found_where_there_is_some() -> None:
    text = "Please tell me in a few short words what the capital of France may be"
    assert runs(text) & runs(f"Dear model! {text.upper()}?")
    assert not runs(text) & runs(text.replace("short", "long").replace("of", "in"))


@pytest.mark.parametrize(("target", "folder"), HEADS)
def test_no_prompt_of_a_head_is_of_a_benchmark(target: str, folder: Path) -> None:
    if not SHARED.exists():
        pytest.skip("no benchmarks beside the repository")
    known = set().union(*map(runs, benchmark_texts()))
    assert len(known) > 10_000
    lines = (folder / "prompts.jsonl").read_text("utf-8").splitlines()
    own = [json.loads(line)["messages"][0]["content"] for line in lines]
    assert len(own) > 50
    assert [text for text in own if runs(text) & known] == []


@pytest.mark.parametrize(("target", "folder"), HEADS)
def test_every_head_has_a_card_and_stays_small(target: str, folder: Path) -> None:
    card = (folder / "README.md").read_text("utf-8")
    for word in ("data", "steps", "depth", "licence"):
        assert word in card.lower()
    assert sum(file.stat().st_size for file in folder.parent.rglob("*")) < MOST_BYTES


def test_a_target_drafts_with_retrieval_and_its_heads() -> None:
    for target in PRETRAINED:
        specs = drafter_specs(target)
        assert tuple(specs[:2]) == RETRIEVAL
        assert len(specs) == 2 + len(head_folders(target))
    assert drafter_specs("some/other.gguf") == list(RETRIEVAL)
