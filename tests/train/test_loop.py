"""The training loop: schedules, resuming, and that it learns at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftwise.train import Settings, cross_entropy, deepen, fit, make_llama, pack

VOCAB = 64


def tiny(num_layers: int = 2) -> torch.nn.Module:
    return make_llama(
        vocab_size=VOCAB,
        num_layers=num_layers,
        hidden_size=32,
        intermediate_size=48,
        head_dim=16,
        seed=1,
    )


def batch(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, VOCAB, (4, 1), generator=generator)
    return (start + 3 * torch.arange(16)) % VOCAB


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_rate_warms_up_stays_and_falls() -> None:
    settings = Settings(steps=100, lr=1.0, warmup_steps=10, decay_steps=20)
    assert settings.rate(0) == pytest.approx(0.1)
    assert settings.rate(50) == 1.0
    assert settings.rate(99) == pytest.approx(0.05)


def test_a_budget_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Settings(steps=0)


def test_training_learns() -> None:
    losses = fit(tiny(), cross_entropy, batch, Settings(steps=60, lr=5e-3, warmup_steps=5))
    assert losses[-1] < 0.6 * losses[0]


def test_a_resumed_run_gives_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = Settings(steps=12, warmup_steps=3, decay_steps=4, bf16=True)
    whole, halves = tiny(), tiny()
    expected = fit(whole, cross_entropy, batch, settings)
    checkpoint = tmp_path / "run.pt"
    fit(halves, cross_entropy, batch, settings, checkpoint=checkpoint, stop_at=5)
    resumed = tiny()
    assert fit(resumed, cross_entropy, batch, settings, checkpoint=checkpoint) == expected
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_run_is_only_loaded(tmp_path: Path) -> None:
    settings, seen = Settings(steps=3), []
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


def test_a_deeper_model_computes_the_same() -> None:
    shallow = tiny().eval()
    deep = deepen(shallow, 3).eval()
    assert deep.config.num_hidden_layers == 6
    tokens = batch(0)
    assert torch.allclose(deep(tokens).logits, shallow(tokens).logits, atol=1e-5)


def test_a_deeper_model_learns_in_its_new_layers() -> None:
    deep = deepen(tiny(), 2)
    fit(deep, cross_entropy, batch, Settings(steps=2, warmup_steps=1))
    assert deep.model.layers[1].mlp.down_proj.weight.abs().sum() > 0


def test_a_packed_model_is_half_on_disk_and_whole_in_memory(tmp_path: Path) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    model = tiny()
    pack(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float16}  # noqa: SIM118
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.float32
    for a, b in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(a.half().float(), b)
