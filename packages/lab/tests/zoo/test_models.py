"""Models are initialised, deepened and packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftwise_lab.train.loop import TrainingSettings, fit
from draftwise_lab.zoo.models import cross_entropy, deepen, make_llama, pack

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
    return (torch.arange(VOCAB).view(4, -1) + step) % VOCAB


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_deeper_model_computes_the_same() -> None:
    shallow = tiny().eval()
    deep = deepen(shallow, 3).eval()
    assert deep.config.num_hidden_layers == 6
    tokens = batch(0)
    assert torch.allclose(deep(tokens).logits, shallow(tokens).logits, atol=1e-5)


def test_a_deeper_model_learns_in_its_new_layers() -> None:
    deep = deepen(tiny(), 2)
    fit(deep, cross_entropy, batch, TrainingSettings(steps=2, warmup_steps=1))
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
