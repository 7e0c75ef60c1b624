"""A target made dearer for benchmarks/large.py says what it said, with the same drafts accepted."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from draftwise import Speculator, zoo
from draftwise.nn import load_model

BENCHMARKS = Path(__file__).parents[3] / "packages" / "lab" / "benchmarks"


def test_an_inflated_target_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    large = importlib.import_module("large")
    module = load_model(str(zoo.target_path()), device="cpu").module
    dearer = large.inflated(module, 3)
    prompt = load_prompt()
    answers, layers = [], []
    for target in (module, dearer):
        made = Speculator.from_pretrained(
            target, ["zoo:generalist"], preset="metasd", policy="fixed:0", lengths=[4]
        )
        result = made.generate([prompt], max_new_tokens=40)[0]
        answers.append((result.tokens, result.stats.num_rounds))
        layers.append(made.target.num_layers)
    assert answers[0] == answers[1]
    assert layers == [24, 27]
    assert len(module.model.layers) == 24, "the target itself is left alone"


def load_prompt() -> list[int]:
    """The first arithmetic prompt of the zoo."""
    tokenizer = Speculator.from_pretrained("zoo", []).tokenizer
    return list(tokenizer(zoo.prompts()["math"][0])["input_ids"])
