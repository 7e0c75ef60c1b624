"""``draftwise check``: a correct model passes, and a wrong wide forward is detected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import run_command
from draftwise.nn.check import LosslessnessReport, rounding_bound
from draftwise.nn.model import CausalModel
from models import CONFIGS, tiny_model

PROMPT, NUM = [3, 1, 4, 1, 5, 9, 2, 6], 40


def report_on(model: CausalModel, widths: Sequence[int] = (2, 4, 8)) -> LosslessnessReport:
    """The report on a model's greedy text, decoded one token at a time, against itself."""
    cache, fed, text = model.new_cache(num_rows=1), list(PROMPT), list[int]()
    with torch.inference_mode():
        for _ in range(NUM):
            cache.settle([0], cache.lengths)
            fed = [int(model.extend(cache, [0], [fed], keep=1).last(0, 1).argmax())]
            text += fed
    report = LosslessnessReport(model, widths)
    report.add(PROMPT, text, text)
    return report


@pytest.mark.parametrize("kind", CONFIGS)
def test_right_models_are_lossless(kind: str) -> None:
    """Differences stay far below the rounding bound, so small errors do not pass as rounding."""
    report = report_on(CausalModel(tiny_model(kind), kind))
    assert report.is_lossless
    assert "no argmax changes in 120 positions" in report.verdict()
    assert all(max(found.shares) < 0.5 for found in report.widths.values())


@pytest.mark.parametrize("kind", CONFIGS)
def test_half_precision_stays_within_its_bound(kind: str) -> None:
    model = CausalModel(tiny_model(kind).to(torch.bfloat16), kind)
    report = report_on(model)
    assert report.is_lossless
    assert "bfloat16" in report.verdict()
    assert max(max(found.shares) for found in report.widths.values()) < 0.5
    for found in report.widths.values():
        row = found.as_json()
        assert row["num_positions"] == NUM
        assert row["num_flips"] == 0 or row["largest_flip_margin"] <= 2 * row["largest_difference"]


def with_wrong_wide_forwards(model: CausalModel, mistake: float) -> CausalModel:
    """The model, but forwards of several tokens mix each token's logits with the next one's."""
    right = model.extend

    def extend(*args: Any, **options: Any) -> Any:
        found = right(*args, **options)
        if len(found.flat) > 1:
            found.flat[:-1] += mistake * (found.flat[1:] - found.flat[:-1])
        return found

    model.extend = extend  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("mistake", [1e-3, 0.3])
def test_a_wrong_wide_forward_is_found(mistake: float) -> None:
    """The check also finds an error too small to change a token: sampling would be biased."""
    model = CausalModel(tiny_model(), "llama")
    assert report_on(model).is_lossless
    report = report_on(with_wrong_wide_forwards(model, mistake))
    assert not report.is_lossless
    assert "NOT lossless in float32" in report.verdict()
    assert "times what rounding" in report.verdict()
    num_flips = sum(found.as_json()["num_flips"] for found in report.widths.values())
    assert (num_flips > 0) == (mistake > 0.1)


def test_tokens_that_differ_are_rounding_in_half_precision_only() -> None:
    """A token that differs where the margin is largest is a bug in any precision."""
    for dtype in (torch.float32, torch.bfloat16):
        model = CausalModel(tiny_model().to(dtype), "llama")
        report = report_on(model)
        text = greedy(model)
        place = int(torch.tensor(report.margins).argmax())
        other = [*text[:place], (text[place] + 1) % 64, *text[place + 1 :]]
        report.add(PROMPT, text, other)
        answer = report.as_json()["answers"][1]
        assert (answer["position"], answer["speculative"]) == (place, other[place])
        assert answer["margin"] >= max(report.margins) - 1e-3
        assert not answer["is_rounding"]
        assert not report.is_lossless
        assert "1 of 2 answers differ" in report.verdict()


def greedy(model: CausalModel) -> list[int]:
    ids = torch.tensor([PROMPT])
    found = model.module.generate(ids, max_new_tokens=NUM, do_sample=False)
    return found[0, len(PROMPT) :].tolist()


def test_an_answer_that_ends_early_is_no_rounding() -> None:
    model = CausalModel(tiny_model().to(torch.bfloat16), "llama")
    report = LosslessnessReport(model, [2])
    text = greedy(model)
    report.add(PROMPT, text, text[:-1])
    assert not report.is_lossless


def test_the_bound_follows_the_dtype() -> None:
    models = {d: CausalModel(tiny_model().to(d), "llama") for d in (torch.float32, torch.bfloat16)}
    exact, half = (rounding_bound(model) for model in models.values())
    # 2 layers; the longest sum is the MLP's, of 64 terms
    assert exact == pytest.approx((2 * 3 * (12 + 6 * 64)) ** 0.5 * 2**-24)
    assert half == pytest.approx((2 * 3 * (12 * 2**-16 + 6 * 64 * 2**-48)) ** 0.5)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text(
        "one two three one two three one two three\nThe tide comes, the tide goes, the tide\n"
    )
    return path


def test_the_command_on_a_tiny_pair(pair: tuple[Path, Path], prompts: Path) -> None:
    options = ("--target", pair[0], "--drafter", f"lm:{pair[1]}", "-d", "lookup", "-n", 24)
    ran = run_command("check", *options, "--prompts", prompts, "--json", "--dtype", "float32")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["is_lossless"]
    assert found["verdict"].startswith("lossless in float32: 0 of 2 answers differ")
    assert found["num_drafted"] > found["num_accepted"] > 0
    assert list(found["widths"]) == ["2", "4", "8", "16"]
    assert found["widths"]["2"]["num_positions"] == found["num_positions"] == 48
    text = run_command(
        "check", *options, "-b", prompts, "--widths", "3", "--dtype", "float32", "-q"
    )
    assert (text.code, text.err) == (0, "")
    assert "3 tokens" in text.out
    assert text.out.splitlines()[-1].startswith("lossless in float32")
    assert max(map(len, text.out.splitlines())) <= 120


def test_a_bug_ends_the_command_with_1(
    pair: tuple[Path, Path], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide forwards are wrong only in texts longer than those of the self-check at load."""
    right = CausalModel.extend

    def wrong(self: Any, cache: Any, rows: Any, tokens: Any, keep: int, *rest: Any) -> Any:
        found = right(self, cache, rows, tokens, keep, *rest)
        if 1 < len(tokens[0]) < 17 and keep > 1 and cache.lengths[rows[0]] > 30:
            found.flat[:-1] = found.flat[1:].clone()
        return found

    options = ("--target", pair[0], "--drafter", f"lm:{pair[1]}", "-n", 24, "--dtype", "float32")
    assert run_command("check", *options, "-b", prompts, "-q").code == 0
    monkeypatch.setattr(CausalModel, "extend", wrong)
    ran = run_command("check", *options, "-b", prompts, "-q")
    assert ran.code == 1
    assert "NOT lossless in float32: 2 of 2 answers differ" in ran.out
    assert "more than rounding explains" in ran.out
