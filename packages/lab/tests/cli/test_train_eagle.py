"""``draftwise train eagle``: from a file of texts to a head that drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from cli.conftest import Ran, run_command

LINES = [
    {"prompt": "say it:", "completion": " abcabcabc"},
    {"text": "once more, once more, once more"},
    {"prompt": "and now by yourself"},
    {"prompt": "and again"},
] * 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    return file


def train(pair: tuple[Path, Path], data: Path, out: Path, *more: object) -> Ran:
    options = ["--epochs", 2, "--depth", 3, "--max-new-tokens", 12, "--batch-tokens", 128]
    return run_command(
        "train", "eagle", "--target", pair[0], "--data", data, "--out", out, *options, *more
    )


@pytest.mark.parametrize("layout", ["authors", "speculators"])
def test_a_head_is_made_and_drafts(
    pair: tuple[Path, Path], data: Path, tmp_path: Path, layout: str
) -> None:
    out = tmp_path / "head"
    ran = train(pair, data, out, "--layout", layout, "--draft-vocab", 60)
    assert ran.code == 0, ran.err
    report = json.loads((out / "report.json").read_text())
    assert len(report["acceptance_by_depth"]) == 3
    assert all(f"{alpha:.3f}" in ran.out for alpha in report["acceptance_by_depth"])
    assert report["draft_vocab_size"] == 60
    config = json.loads((out / "config.json").read_text())
    assert ("speculators_config" in config) == (layout == "speculators")
    text = ("hello", "--max-new-tokens", 12, "--target", pair[0], "--json")
    plain, ours = (
        run_command("generate", *text, *extra)
        for extra in (("--preset", "plain"), ("--drafter", f"eagle:{out},depth=3"))
    )
    assert ours.objects[0]["tokens"] == plain.objects[0]["tokens"]
    described = run_command("models", "--target", pair[0], "--drafter", f"eagle:{out}")
    assert "EAGLE-3 0,1,2" in described.out


@pytest.mark.parametrize("lends", [(), ("--lend",)])
def test_a_head_for_a_target_in_bfloat16(
    pair: tuple[Path, Path], data: Path, tmp_path: Path, lends: tuple[str, ...]
) -> None:
    """The head's weights train in float32, next to the parts shared by a target in bfloat16."""
    out, half = tmp_path / "head", ("--dtype", "bfloat16")
    ran = train(pair, data, out, "--draft-vocab", 60, *half, *lends)
    assert ran.code == 0, ran.err
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.get_tensor("fc.weight").dtype == torch.bfloat16
    text = ("hello", "--max-new-tokens", 12, "--target", pair[0], "--json", *half)
    plain, ours = (
        run_command("generate", *text, *extra)
        for extra in (("--preset", "plain"), ("--drafter", f"eagle:{out}"))
    )
    assert ours.objects[0]["tokens"] == plain.objects[0]["tokens"]


def test_the_same_command_again_only_loads(
    pair: tuple[Path, Path], data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "head"
    train(pair, data, out, "--keep")
    before = (out / "model.safetensors").read_bytes()
    stamp = (out / "work" / "head.pt").stat().st_mtime_ns
    assert train(pair, data, out, "--keep").code == 0
    assert (out / "model.safetensors").read_bytes() == before
    assert (out / "work" / "head.pt").stat().st_mtime_ns == stamp
    assert "holds the work on other" in train(pair, data, out, "--seed", 5).refusal


def test_prompts_in_place_of_data(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts come from a file or from the model itself, which needs a chat template for that."""
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    file.write_text("\n".join(json.dumps({"prompt": f"say {n}"}) for n in range(4)))
    common = ("train", "eagle", "--target", pair[0], "--out", out, "--max-new-tokens", 8)
    ran = run_command(*common, "--prompts", file, "--epochs", 1, "--depth", 2, "--lend")
    assert ran.code == 0, ran.err
    report = json.loads((out / "report.json").read_text())
    assert report["expected_speedup"] > 0
    assert "before training: acceptance" in ran.err
    own = run_command(*common, "--prompts", "self", "--work", tmp_path / "work")
    assert "no chat template" in own.refusal
    made = run_command("prompts", "make", "--target", pair[0], "--out", tmp_path / "own.jsonl")
    assert "no chat template" in made.refusal
