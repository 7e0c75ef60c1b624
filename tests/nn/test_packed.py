"""int8 and int4 weights: their values, and losslessness with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from draftwise import Speculator
from draftwise.nn import GROUP, PRECISIONS, four_bits, load_model, pack
from draftwise.types import DraftwiseError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of widths that can be packed."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        initializer_range=0.3, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("packed")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_four_bits_are_exact_on_their_own_grid() -> None:
    """As in GGUF's Q4_1: a scale and a minimum for every 32 weights."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 16, (8, 4, GROUP), generator=generator)
    bits[..., 0], bits[..., 1] = 0, 15
    weight = bits * torch.rand(8, 4, 1, generator=generator) - 0.5
    found, scale, middle = four_bits(weight.view(8, -1))
    assert torch.equal(found.view_as(bits), bits.int())
    again = (found.view(8, 4, GROUP) - 8) * scale[..., None] + middle[..., None]
    assert torch.allclose(again, weight, atol=1e-6)


@pytest.mark.parametrize(("precision", "worst"), [("int8", 0.02), ("int4", 0.15)])
@torch.no_grad()
def test_a_packed_layer_is_nearly_the_linear_one(precision: str, worst: float) -> None:
    torch.manual_seed(0)
    layer, states = nn.Linear(64, 96, bias=False), torch.randn(2, 5, 64)
    exact = layer(states)
    found = PRECISIONS[precision](layer.weight)(states)
    assert found.shape == exact.shape
    assert float((found - exact).norm() / exact.norm()) < worst


@pytest.mark.parametrize("precision", PRECISIONS)
def test_drafts_change_nothing_of_what_a_packed_target_says(folder: Path, precision: str) -> None:
    """Greedy text is the same with drafts, on a repetitive prompt and another one."""
    module = load_model(folder, dtype=precision).module
    plain = Speculator.from_pretrained(module, [], preset="plain")
    fast = Speculator.from_pretrained(module, ["lookup", "suffix"])
    for prompt in ([1, 2, 3, 1, 2, 3, 1], [5, 9, 40]):
        expected = plain.generate(prompt, max_new_tokens=40, ignore_eos=True).tokens
        assert fast.generate(prompt, max_new_tokens=40, ignore_eos=True).tokens == expected


def test_what_cannot_be_packed(folder: Path) -> None:
    with pytest.raises(DraftwiseError, match="int8, int4"):
        load_model(folder, dtype="four bits")
    with pytest.raises(DraftwiseError, match="served on CPUs"):
        pack(nn.Linear(32, 4, device="meta"), "int4")
    odd = nn.Sequential(nn.Linear(33, 4, bias=False), nn.Linear(64, 4))
    pack(odd, "int4")
    assert all(isinstance(layer, nn.Linear) for layer in odd)
