"""``draftwise sweep``: rates by hand, frontiers, the regression, the oracle, and the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import run_command
from draftwise.drafters.lm import LMDrafter
from draftwise_lab.bench.sweep import (
    Field,
    Point,
    Run,
    Way,
    discard_at,
    fixed_ways,
    frontier,
    gain,
    head_ways,
    point,
    regress,
)
from engine.pairs import PROMPTS, lm, plain_greedy, target
from models import head_home

WAYS = fixed_ways([2, 4])


def run(way: str = "K=2", prompt: int = 0, **numbers: Any) -> Run:
    given = {
        "num_tokens": 10, "num_target": 4, "num_drafted": 8, "num_discarded": 2,
        "num_draft_forwards": 8, "seconds": 1.0, "oracle": 3.0,
    }  # fmt: skip
    return Run(way, prompt, **(given | numbers))


def at(discard: float, verified: float, name: str = "x") -> Point:
    return Point(Way(name, 1, "fixed", {}), discard, verified, 0.0, 0.0, 0.0)


def test_rates_by_hand() -> None:
    found = point(WAYS[0], [run(), run(num_tokens=30, num_target=6, num_discarded=8, oracle=5.0)])
    assert (found.discard_rate, found.verification_rate) == (10 / 40, 10 / 40)
    assert found.oracle_rate == 8 / 40
    assert found.mean_length == 16 / 10
    assert found.tok_per_s == 20


def test_the_frontier_has_what_nobody_beats() -> None:
    points = [at(0.1, 0.5), at(0.2, 0.4), at(0.3, 0.45), at(0.2, 0.5), at(0.05, 0.9)]
    best = frontier(points)
    assert [(p.discard_rate, p.verification_rate) for p in best] == [
        (0.2, 0.4), (0.1, 0.5), (0.05, 0.9),
    ]  # fmt: skip
    assert discard_at(best, 0.45) == pytest.approx(0.15)
    assert discard_at(best, 0.3) is None
    assert discard_at([], 0.3) is None


def test_the_regression_finds_what_forwards_cost() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 60, (40, 3)).tolist()
    runs = [
        run(
            num_draft_forwards=a, num_target=b, num_drafted=c,
            seconds=0.001 * a + 0.01 * b + 0.0005 * c,
        )
        for a, b, c in counts
    ]  # fmt: skip
    fit = regress(runs, with_verified=True)
    assert (fit.draft_s, fit.target_s, fit.verified_s) == pytest.approx((0.001, 0.01, 0.0005))
    assert fit.r2 == pytest.approx(1.0)
    two = regress(runs)
    assert two.verified_s == 0.0
    assert two.r2 < 1.0


def test_speed_is_compared_on_the_same_prompts() -> None:
    runs = {
        "a": [run("a", i, seconds=1.0 + i) for i in range(6)],
        "b": [run("b", i, seconds=1.5 + 1.5 * i) for i in range(6)],
    }
    value, low, high = gain(runs, "a", "b")
    assert (value, low, high) == pytest.approx((1.5, 1.5, 1.5))


def test_greedy_counts_obey_the_paper_s_identity_and_the_oracle_is_exact() -> None:
    """N_draft + N_target = N + N_discarded; S are the positions where the greedy tokens differ."""
    ways = [*WAYS, *head_ways([head_home() / "head"], [0.3, 0.6], lag=False)]
    ways += [Way("late", 20, f"head:{head_home() / 'head'},h=0.3,lag=true", {})]
    drafter = LMDrafter("good", lm("good").model, target(), head_home())
    field = Field(target(), drafter, ways, max_new_tokens=30)
    prompts = [PROMPTS[0], PROMPTS[2]]
    for way in ways:
        for i, found in enumerate(field.run(way, prompts, 0, 0)):
            assert found.num_tokens == 30
            assert found.num_drafted + found.num_target == 30 + found.num_discarded
            extra = found.num_draft_forwards - found.num_drafted
            assert (extra > 0) == way.rule.endswith(("h=0.3", "h=0.6"))
            text = prompts[i] + plain_greedy(prompts[i], 30)
            module = lm("good").model.module
            import torch

            with torch.inference_mode():
                drafted = (
                    module(torch.tensor([text])).logits[0, len(prompts[i]) - 1 : -1].argmax(-1)
                )
            wrong = (drafted != torch.tensor(text[len(prompts[i]) :])).float().mean()
            assert found.oracle == pytest.approx(30 * float(wrong) + 1, rel=0.15)
            assert found.num_target >= found.oracle - 2


def test_the_command(pair: tuple[Path, Path], tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    shutil.copytree(pair[1], drafter)
    shutil.copytree(head_home() / "head", drafter / "head")
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
    ran = run_command(
        "sweep", "--target", pair[0], "--drafter", drafter, "--prompts", f"mine={tmp_path}/p.txt",
        "--prompts", tmp_path / "p.txt", "--out", tmp_path / "out", "--lengths", "1,3",
        "--thresholds", "0.2,0.8", "--max-new-tokens", 12, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = ran.objects[0]
    assert json.loads((tmp_path / "out" / "sweep.json").read_text()) == found
    assert (tmp_path / "out" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert set(found["panels"]) == {"mine", "p"}
    panel = found["panels"]["mine"]
    assert [row["way"] for row in panel["points"]] == ["K=1", "K=3", "h=0.2", "h=0.8"]
    assert panel["best_fixed"] in {"K=1", "K=3"}
    shown = run_command(
        "sweep", "--target", pair[0], "--drafter", drafter, "--prompts", tmp_path / "p.txt",
        "--out", tmp_path / "out", "--lengths", "2", "--thresholds", "0.5", "--batch-size", 3,
        "--max-new-tokens", 8,
    )  # fmt: skip
    assert "fewer of both than a fixed length" in shown.out
