"""Drafters learn from the target's distributions, as in the recipe of the bundled models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from draftwise.nn import CausalModel
from draftwise_lab.train import (
    LOSSES,
    DrafterOptions,
    SamplingTask,
    Text,
    TrainingSettings,
    continuations,
    drafter_batches,
    fit,
    measure_acceptance,
)
from draftwise_lab.zoo import make_llama

VOCAB = 48


EOS = 2


def tiny(num_layers: int, seed: int) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return make_llama(
        vocab_size=VOCAB,
        num_layers=num_layers,
        hidden_size=32,
        intermediate_size=48,
        head_dim=16,
        seed=seed,
    ).eval()


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    model = tiny(2, 0)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(6)  # sharpens the distributions
    return model


@pytest.fixture(scope="module")
def texts(target: LlamaForCausalLM) -> list[Text]:
    prompts = [[1, 3 + i % 40] for i in range(48)]
    tasks = {i: SamplingTask(prompt) for i, prompt in enumerate(prompts)}
    new = continuations(
        CausalModel(target, "target"),
        tasks,
        max_new_tokens=24,
        eos_token_ids=[EOS],
        rows=48,
        seed=0,
    )
    return [Text((*prompts[i], *answer), len(prompts[i])) for i, answer in new]


def test_distillation_raises_acceptance(
    target: LlamaForCausalLM, texts: list[Text], tmp_path: Path
) -> None:
    batch = drafter_batches(target, texts, DrafterOptions(), tmp_path)
    drafter = tiny(1, 5)
    before = measure_acceptance(target, {"drafter": drafter}, texts)["drafter"]
    settings = TrainingSettings(steps=120, lr=1e-2, warmup_steps=5, decay_steps=40)
    losses = fit(drafter, LOSSES["logits"], batch, settings, checkpoint=tmp_path / "run.pt")
    assert losses[-1] < losses[0]
    after = measure_acceptance(target, {"drafter": drafter.eval(), "target": target}, texts)
    assert after["drafter"] > before + 0.15
    assert after["target"] == pytest.approx(1.0, abs=1e-5)
