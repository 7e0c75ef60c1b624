"""The training loop: schedules, resuming, and falling loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from draftwise_lab.train.loop import TrainingSettings, fit

VOCAB = 64


def tiny() -> torch.nn.Module:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def cross_entropy(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    return model(input_ids=tokens, labels=tokens).loss


def batch(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, VOCAB, (4, 1), generator=generator)
    return (start + 3 * torch.arange(16)) % VOCAB


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_rate_warms_up_stays_and_falls() -> None:
    settings = TrainingSettings(steps=100, lr=1.0, warmup_steps=10, decay_steps=20)
    assert settings.rate(0) == pytest.approx(0.1)
    assert settings.rate(50) == 1.0
    assert settings.rate(99) == pytest.approx(0.05)


def test_a_budget_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        TrainingSettings(steps=0)


def test_training_learns() -> None:
    losses = fit(tiny(), cross_entropy, batch, TrainingSettings(steps=60, lr=5e-3, warmup_steps=5))
    assert losses[-1] < 0.6 * losses[0]


def test_a_resumed_run_gives_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = TrainingSettings(steps=12, warmup_steps=3, decay_steps=4, bf16=True)
    whole, halves = tiny(), tiny()
    expected = fit(whole, cross_entropy, batch, settings)
    checkpoint = tmp_path / "run.pt"
    fit(halves, cross_entropy, batch, settings, checkpoint=checkpoint, stop_at=5)
    resumed = tiny()
    assert fit(resumed, cross_entropy, batch, settings, checkpoint=checkpoint) == expected
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_run_is_only_loaded(tmp_path: Path) -> None:
    settings, seen = TrainingSettings(steps=3), []
    checkpoint = tmp_path / "run.pt"
    fit(tiny(), cross_entropy, batch, settings, checkpoint=checkpoint)
    model = tiny()
    fit(
        model,
        cross_entropy,
        batch,
        settings,
        checkpoint=checkpoint,
        progress=lambda step, loss: seen.append(step),
    )
    assert seen == []
    assert not list(tmp_path.glob("*.tmp"))
