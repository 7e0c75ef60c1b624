"""``draftwise train head``: from prompts to a head that generation loads, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Ran, run_command
from small_disk import files_of_at_most


def train(pair: tuple[Path, Path], prompts: Path, out: Path, *more: object) -> Ran:
    return run_command(
        "train", "head", "--target", pair[0], "--drafter", pair[1], "--prompts", prompts,
        "--out", out, "--max-new-tokens", 12, "--epochs", 2, *more,
    )  # fmt: skip


def test_a_head_is_trained_found_and_obeyed(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    drafter = tmp_path / "drafter"
    shutil.copytree(pair[1], drafter)
    ran = train(
        (pair[0], drafter), prompts, drafter / "head", "--json", "--work", tmp_path / "work"
    )
    assert ran.code == 0, ran.err
    numbers = ran.objects[0]
    assert numbers["num_taught"] > 100
    assert json.loads((drafter / "head" / "report.json").read_text()) == numbers
    assert {p.name for p in (drafter / "head").iterdir()} == {
        "config.json", "model.safetensors", "report.json", "reliability.png",
    }  # fmt: skip

    def answer(*more: object) -> dict[str, Any]:
        models = ("--target", pair[0], "--drafter", f"lm:{drafter}")
        more = (*more, "--max-new-tokens", 30, "--json")
        return run_command("generate", "Hello", *models, *more).objects[0]

    plain, ours = answer("--preset", "plain"), answer("--preset", "specdecpp")
    assert ours["tokens"] == plain["tokens"]
    assert ours["num_drafted"] > 0


def test_the_same_command_again_goes_on_and_ends_alike(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    outs = [tmp_path / "a", tmp_path / "b"]
    assert train(pair, prompts, outs[0]).code == 0
    for _ in range(2):
        assert train(pair, prompts, outs[1]).code == 0
    files = [(out / "model.safetensors").read_bytes() for out in outs]
    assert files[0] == files[1]


def test_another_head_takes_the_same_work(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    work = ("--work", tmp_path / "work")
    assert train(pair, prompts, tmp_path / "a", *work).code == 0
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "work").rglob("*.npz")}
    more = ("--depth", 0, "--w-rej", 1, "--label", "analytic", "--tied")
    assert train(pair, prompts, tmp_path / "b", *work, *more).code == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "work").rglob("*.npz")} == times
    assert json.loads((tmp_path / "b" / "config.json").read_text())["num_layers"] == 0
    refused = train(pair, prompts, tmp_path / "c", *work, "--seed", 1)
    assert "give another --work" in refused.refusal


@pytest.mark.parametrize("num_bytes", [30_000])
def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path, num_bytes: int
) -> None:
    """The disk has no room for answers, or none for the checkpoint after answers and labels."""
    with files_of_at_most(num_bytes):
        refusal = train(pair, prompts, tmp_path / "full").refusal
    assert "cannot be written" in refusal
    assert "make room" in refusal
    for name in ("full", "roomy"):
        assert train(pair, prompts, tmp_path / name).code == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("full", "roomy")]
    assert files[0] == files[1]
