"""``draftwise train drafter``: any target, resumable, with a report of acceptance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cli.conftest import Ran, run_command
from cli.models_on_disk import make_target, save_model
from draftwise.nn.load import load_model
from draftwise.types import DraftwiseError
from draftwise_lab.train.data import Text
from draftwise_lab.train.drafter import drafter_batches, first_layers
from draftwise_lab.train.options import DrafterOptions
from draftwise_lab.train.speedup import MAX_LENGTH, break_even, measure_costs, speedups
from models import CONFIGS, tiny_model


def train(pair: tuple[Path, Path], prompts: Path, out: Path, *more: object) -> Ran:
    return run_command(
        "train", "drafter", "--target", pair[0], "--prompts", prompts, "--out", out,
        "--max-new-tokens", 12, "--lr", 0.005, *more,
    )  # fmt: skip


def test_a_drafter_is_trained_and_drafts(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    start = save_model(tmp_path / "start", make_target(seed=3))
    ran = train(pair, prompts, tmp_path / "new", "--init", start, "--epochs", 40)
    assert ran.code == 0, ran.err
    looks = json.loads((tmp_path / "new" / "report.json").read_text())
    assert [look["when"].split()[0] for look in looks] == ["before", "after", "after"]
    assert looks[-1]["acceptance"] > looks[0]["acceptance"] + 0.05
    said = ran.err.replace("\n", " ")
    assert said.index("before training: acceptance") < said.index("after 2 of 40 steps")
    models = ("--preset", "plain"), ("--drafter", f"lm:{tmp_path / 'new'}")
    answers = [
        run_command(
            "generate", "say one", "--target", pair[0], *model, "--max-new-tokens", 20, "--json"
        ).objects[0]["tokens"]
        for model in models
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("loss", ["logits", "sequence"])
def test_interrupted_and_resumed_gives_the_same_weights(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path, loss: str
) -> None:
    """The second drafter's first run ends at its probe; the full command resumes from there."""
    more = ("--init", pair[1], "--loss", loss, "--epochs", 3)
    assert train(pair, prompts, tmp_path / "a", *more).code == 0
    first = train(pair, prompts, tmp_path / "b", *more, "--probe-only", "--probe", 0.4)
    assert first.code == 0
    assert not (tmp_path / "b" / "model.safetensors").exists()
    assert train(pair, prompts, tmp_path / "b", *more).code == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize("kind", CONFIGS)
def test_first_layers_are_the_target_s(kind: str) -> None:
    target = tiny_model(kind)
    drafter = first_layers(target, 1)
    ours, theirs = drafter.state_dict(), target.state_dict()
    assert set(ours) < set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    tokens = torch.tensor([[3, 5, 9]])
    with torch.inference_mode():
        assert drafter(tokens).logits.shape == target(tokens).logits.shape
    with pytest.raises(DraftwiseError, match="fewer than those"):
        first_layers(target, target.config.num_hidden_layers)


def test_states_that_do_not_fit_are_computed_as_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, options = tiny_model(), DrafterOptions(batch_tokens=64)
    texts = [Text(tuple((7 * i + 3 * j) % 60 + 1 for j in range(16)), 4) for i in range(12)]
    kept = drafter_batches(target, texts, options, tmp_path)
    monkeypatch.setattr("draftwise_lab.train.drafter.MOST_KEPT_BYTES", 0)
    live = drafter_batches(target, texts, options, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    for step in range(4):
        a, b = kept(step), live(step)
        assert torch.equal(a.tokens, b.tokens)
        assert torch.allclose(a.logits.float(), b.logits, atol=1e-2)


def test_expected_speed_by_hand() -> None:
    """alpha 0.5, a draft step costs 0.2: 1.5 / 1.2 and 1.75 / 1.4 tokens per target forward."""
    assert speedups(0.5, np.ones(3), 0.2).tolist() == pytest.approx([1.5 / 1.2, 1.75 / 1.4])
    assert break_even(np.array([1.0, 1.5]), 0.5) == 1.0
    assert break_even(np.ones(9), 0.3) == pytest.approx(0.3, abs=2e-3)


def test_costs_are_measured(pair: tuple[Path, Path]) -> None:
    target, drafter = (load_model(path) for path in pair)
    costs = measure_costs(target, drafter)
    assert len(costs.target_s) == MAX_LENGTH + 1
    assert (costs.target_s[1:] >= costs.target_s[:-1]).all()
    assert costs.draft_s[drafter.name] > 0
