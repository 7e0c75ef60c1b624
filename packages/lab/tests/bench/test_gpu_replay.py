"""The replay at given step costs: every rule, every part of the gap, and unfavourable texts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

import draftwise

FOLDER = Path(draftwise.__file__).parents[2] / "packages" / "lab" / "benchmarks"
MODEL = "llama8b_tiny"
KINDS = ("cnn", "gsm8k", "instructcoder", "sharegpt")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four texts of each kind that repeat a phrase, with a head that is often right."""
    rng, arrays = np.random.default_rng(0), {}
    for kind in KINDS:
        prompts, answers, heads = [], [], []
        for _ in range(4):
            phrase = rng.integers(1000, size=12)
            prompts.append(np.tile(phrase, 2))
            answers.append(np.concatenate([np.tile(phrase, 2), rng.integers(1000, size=12)]))
            heads.append(1 + rng.geometric(1 / 3, size=36).clip(max=5) - 1)
        for name, parts in (("prompt", prompts), ("answer", answers), ("eagle", heads)):
            arrays[f"{kind}/{name}"] = np.concatenate(parts)
            arrays[f"{kind}/{name}_ends"] = np.cumsum([len(part) for part in parts])
    np.savez(tmp_path / "acceptance_tiny.npz", **arrays)
    tokens = np.arange(4097)
    np.savez(
        tmp_path / "step_costs.npz",
        **{
            f"{MODEL}/tokens": tokens,
            f"{MODEL}/linear_ms": 8.0 + 0.01 * tokens + (tokens > 16),
            f"{MODEL}/batch": np.array([1.0, 256.0]),
            f"{MODEL}/context": np.array([0.0, 1e5]),
            f"{MODEL}/attention_ms": np.array([[0.0, 10.0], [0.0, 20.0]]),
        },
    )
    return tmp_path


def test_every_part_runs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    replay = importlib.import_module("gpu_replay")
    out = data / "out.json"
    options = ["--model", MODEL, "--requests", "2", "--seeds", "0", "--texts", "12", "--gap"]
    options += ["--safety"]
    monkeypatch.setattr("sys.argv", ["x", "--data", str(data), *options, "--out", str(out)])
    replay.main()
    found = json.loads(out.read_text("utf-8"))
    (cell,), (gap,) = found["cells"], found["gaps"]
    assert 1.0 < cell["best_speed"] <= cell["oracle"]
    assert 1.0 < cell["chain"] <= cell["oracle"]
    low, high = cell["chain_promised_least"], cell["chain_promised_most"]
    assert low <= cell["chain_promised"] <= high
    assert set(gap) == {"requests", *replay.INGREDIENTS}
    assert gap["and the next length"] > gap["drafter and length"] > 0.5
    assert {row["text"] for row in found["safety"]} >= {"head never right", "nothing to draft"}


def test_closed_batches(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    replay = importlib.import_module("gpu_replay")
    out = data / "out.json"
    options = ["--model", MODEL, "--requests", "2", "--closed", "20", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["x", "--data", str(data), *options])
    replay.main()
    (row,) = json.loads(out.read_text("utf-8"))["closed"]
    assert row["batches"] > 1
    assert row["best_speed"] == row["rules"][row["best"]] == max(row["rules"].values()) > 1.0
    assert row["others"] > 1.0


def test_promises_are_compared_over_any_requests_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    replay = importlib.import_module("gpu_replay")
    run = replay.Run(controller=None)
    run.promises = [(10.0, 10.0, 1), (30.0, 20.0, 2), (35.0, 30.0, 3), (45.0, 40.0, 4)]
    assert run.promised(1) == (0.5, 2.0)
    assert run.promised(2) == (0.75, 1.5)
    assert run.promised(9) == (1.125, 1.125)


def test_a_step_verifies_no_more_than_its_budget(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if all tokens are equally likely: one more may cost a stair."""
    monkeypatch.syspath_prepend(str(FOLDER))
    ahead, replay = (importlib.import_module(name) for name in ("gpu_ahead", "gpu_replay"))
    prices = replay.Prices(data / "step_costs.npz", MODEL)
    engine = ahead.Engine(replay.load(data), 4, prices, 0, "B confident")
    engine.confidence.predict = lambda rights, num: np.full((len(rights), num), 0.5)
    verified, budgets = [], []
    num_verified = engine.verify

    def verify(rows: object, emitted: object, nums: list[int]) -> None:
        verified.append(sum(nums))
        num_verified(rows, emitted, nums)

    engine.verify = verify
    while engine.source.rows:
        engine.step()
        budgets.append(engine.under_way.scheduled.draftwise.budget)
    assert len(verified) == len(budgets)
    assert all(num <= budget for num, budget in zip(verified, budgets, strict=True))
    assert sum(verified) > 0.5 * sum(budgets) > 50


def test_the_adapter_of_vllm_is_what_decides_one_step_ahead(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    ahead = importlib.import_module("gpu_ahead")
    out = data / "out.json"
    options = ["--model", MODEL, "--requests", "2", "--seeds", "0", "--texts", "12"]
    monkeypatch.setattr("sys.argv", ["x", "--data", str(data), *options, "--out", str(out)])
    ahead.main()
    (cell,) = json.loads(out.read_text("utf-8"))["cells"]
    assert min(cell["A"], cell["B"], cell["B confident"]) > cell["head"] > 0.9
    monkeypatch.setattr(ahead.AsyncAdapter, "_budget", lambda *_: 0)  # nothing is verified
    texts = ahead.gpu_replay.load(data)
    prices = ahead.Prices(data / "step_costs.npz", MODEL)
    assert ahead.drive(texts, 2, prices, 0, "B")["tokens"] == 2.0
