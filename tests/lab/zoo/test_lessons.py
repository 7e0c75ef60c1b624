"""Lessons on disk, and drafters that learn from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from draftwise.nn import CausalModel
from draftwise.train import (
    Ask,
    Text,
    TrainingSettings,
    answer_logits,
    continuations,
    measure_acceptance,
)
from draftwise_lab.zoo import distill, lesson_batches, make_llama, reserve, teach

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
        model.model.embed_tokens.weight.mul_(6)  # sharper than chance
    return model


@pytest.fixture(scope="module")
def texts(target: LlamaForCausalLM) -> list[Text]:
    prompts = [[1, 3 + i % 40] for i in range(48)]
    asks = {i: Ask(prompt) for i, prompt in enumerate(prompts)}
    new = continuations(
        CausalModel(target, "target"), asks, max_new_tokens=24, eos_token_ids=[EOS], rows=48, seed=0
    )
    return [Text((*prompts[i], *answer), len(prompts[i])) for i, answer in new]


def test_a_lesson_keeps_the_logits_of_its_texts(
    target: LlamaForCausalLM, texts: list[Text], tmp_path: Path
) -> None:
    lesson = teach(target, texts, tmp_path / "lesson")
    again = teach(target, [], tmp_path / "lesson")  # finished: loaded, not made
    assert again.texts == lesson.texts
    batch = lesson_batches([lesson], seed=0, tokens_per_batch=128)(3)
    with torch.inference_mode():
        expected = answer_logits(target, batch.tokens, batch.positions)
    assert torch.allclose(batch.logits.float(), expected, atol=2e-2)


def test_distillation_raises_acceptance(
    target: LlamaForCausalLM, texts: list[Text], tmp_path: Path
) -> None:
    lesson = teach(target, texts, tmp_path / "lesson")
    drafter = tiny(1, 5)
    before = measure_acceptance(target, {"drafter": drafter}, texts)["drafter"]
    settings = TrainingSettings(steps=120, lr=1e-2, warmup_steps=5, decay_steps=40)
    losses = distill(drafter, [lesson], settings, seed=0, checkpoint=tmp_path / "run.pt")
    assert losses[-1] < losses[0]
    after = measure_acceptance(target, {"drafter": drafter.eval(), "target": target}, texts)
    assert after["drafter"] > before + 0.15
    assert after["target"] == pytest.approx(1.0, abs=1e-5)


def test_a_table_has_its_room_before_it_is_filled(tmp_path: Path) -> None:
    """A sparse file that outgrows the disk ends the process with a bus error, without a word."""
    file = tmp_path / "table"
    with file.open("wb") as opened:
        opened.truncate(1 << 20)
    reserve(file)
    assert file.stat().st_blocks * 512 >= 1 << 20
