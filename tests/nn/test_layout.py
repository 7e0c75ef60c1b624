"""The memory layout of weights changes neither results nor saved files."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from draftwise.nn import few_rows, layout
from draftwise.nn.eagle_files import load_head
from draftwise.nn.few_rows import FewRows
from draftwise.nn.layout import Prepacked, lay_out, put_back, weights_of
from draftwise.nn.load import load_model
from draftwise.nn.model import CausalModel
from draftwise_lab.train.eagle import new_head
from draftwise_lab.train.save import save_head


@pytest.fixture(autouse=True)
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads and no emulation of bfloat16: elsewhere ``FewRows`` serves these weights."""
    set_machine(monkeypatch, can_multiply=False)
    monkeypatch.setattr(few_rows, "has_bfloat16", lambda: True)


def set_machine(monkeypatch: pytest.MonkeyPatch, **found: bool) -> None:
    for name, value in found.items():
        for module in (few_rows, layout):
            monkeypatch.setattr(module, name, lambda value=value: value)


needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no MKL here")


def a_model() -> LlamaForCausalLM:
    """A small model with tied embeddings and some weights of more than a megabyte."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=192, intermediate_size=1536, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@needs_mkl
@torch.no_grad()
def test_the_same_numbers_in_another_order() -> None:
    model = a_model()
    laid = copy.deepcopy(model)
    assert lay_out(laid) == 1 + 2 * 3  # the output layer, and each layer's gate, up and down
    assert laid.lm_head.weight is laid.get_input_embeddings().weight
    assert not laid.lm_head.weight.is_contiguous()
    assert laid.model.layers[0].mlp.down_proj.weight.is_contiguous()  # more inputs than outputs
    assert type(laid.model.layers[0].self_attn.q_proj) is nn.Linear  # small: unchanged
    for ours, theirs in zip(laid.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for num in (1, 2, 9, 40):
        ids = torch.randint(0, 2048, (2, num), generator=torch.Generator().manual_seed(num))
        assert torch.allclose(laid(ids).logits, model(ids).logits, atol=1e-5)
    assert lay_out(laid) == 0  # already done


def blocked(dtype: torch.dtype = torch.float32) -> Prepacked:
    """A layer with a bias and prepacked blocks; skips where this processor has none."""
    torch.manual_seed(0)
    layer = nn.Linear(512, 640).to(dtype)
    lay_out(layer)
    if not isinstance(layer, Prepacked):
        pytest.skip(f"no blocks of {dtype} here")
    return layer


def uses_blocks(layer: Prepacked, states: torch.Tensor) -> bool:
    """Whether the output changes when the blocks are replaced by those of another weight."""
    right, kept = layer(states), layer._blocks
    assert kept is not None
    wrong = (layer.weight.detach() + 1).to(kept.dtype)  # some dtypes may have no blocks
    layer._blocks = torch.ops.mkldnn._reorder_linear_weight(wrong, 16)
    other = layer(states)
    layer._blocks = kept
    return not torch.equal(other, right)


@needs_mkl
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_used_and_right(dtype: torch.dtype) -> None:
    layer = blocked(dtype)
    with torch.no_grad():
        for num in (2, 5, 16, 130):
            states = torch.randn(num, 512).to(dtype)
            assert uses_blocks(layer, states)
            expected = nn.functional.linear(states.double(), layer.weight.double())
            found = layer(states).double() - layer.bias.double()
            close = 1e-4 if dtype == torch.float32 else 0.05
            assert torch.allclose(found, expected, atol=close, rtol=close)
        assert uses_blocks(layer, torch.randn(1, 512).to(dtype)) == (dtype == torch.bfloat16)


def wide(num_inputs: int = 512, num_outputs: int = 2600) -> Prepacked:
    torch.manual_seed(0)
    layer = nn.Linear(num_inputs, num_outputs)
    lay_out(layer)
    assert isinstance(layer, Prepacked)
    return layer


@needs_mkl
@pytest.mark.skipif(not few_rows.HAS_NUMBA, reason="uncompiled, large products take minutes")
@torch.no_grad()
@pytest.mark.parametrize("capability", ["AVX2", "AVX512", "AVX512_VNNI"])
def test_with_wide_vectors_blocks_serve_five_rows_and_more(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_machine(monkeypatch, can_multiply=True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    layer = nn.Linear(512, 2600)
    assert lay_out(layer) == 1
    assert isinstance(layer, FewRows if capability == "AVX2" else Prepacked)
    assert layer.weight.is_contiguous()
    for num in range(9):
        states = torch.randn(1, num, 1024)[..., ::2]  # rows that are not contiguous
        expected = nn.functional.linear(states.double(), layer.weight.double(), layer.bias.double())
        assert torch.allclose(layer(states).double(), expected, atol=1e-4)
        if isinstance(layer, Prepacked):
            assert uses_blocks(layer, states) == (num > 4)


@needs_mkl
@torch.no_grad()
def test_up_to_three_rows_of_a_row_major_weight_are_the_ordinary_product() -> None:
    layer = wide(1024, 512)
    assert layer.weight.is_contiguous()
    for num in range(1, 6):
        states = torch.randn(num, 1024)
        ordinary = nn.functional.linear(states, layer.weight, layer.bias)
        assert torch.allclose(layer(states), ordinary, atol=1e-4)
        assert uses_blocks(layer, states) == (num > 3)


@needs_mkl
@torch.no_grad()
@pytest.mark.parametrize("outputs", [640, 2600])
def test_a_weight_that_changed_is_read_itself(outputs: int) -> None:
    for change in (
        lambda layer: layer.weight.mul_(2),  # in place
        lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),  # new storage
        lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
        lambda layer: layer.bfloat16(),
    ):
        layer = wide(512, outputs)
        change(layer)
        states = torch.randn(4, 512, dtype=layer.weight.dtype)
        assert torch.equal(layer(states), nn.functional.linear(states, layer.weight, layer.bias))
        assert not uses_blocks(layer, states)


@needs_mkl
def test_gradients_and_copies_go_the_ordinary_way() -> None:
    layer, states = blocked(), torch.randn(4, 512)
    layer(states).sum().backward()
    assert layer.weight.grad is not None
    twin = copy.deepcopy(layer)
    assert twin._blocks is None
    with torch.no_grad():
        assert torch.allclose(twin(states), layer(states), atol=1e-5)
        assert not torch.equal(layer(states), nn.functional.linear(states, layer.weight + 1))


@needs_mkl
def test_no_second_copies_beyond_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    one = model.lm_head.weight.numel() * 4
    monkeypatch.setattr(layout, "_memory_bytes", lambda: (one + 10) / layout.SHARE)
    assert lay_out(model) == 7
    assert sum(isinstance(layer, Prepacked) for layer in model.modules()) == 1


@needs_mkl
@torch.no_grad()
def test_a_loaded_model_is_laid_out_and_saved_as_it_was(tmp_path: Path) -> None:
    a_model().save_pretrained(tmp_path / "a")
    loaded = load_model(tmp_path / "a")
    assert not loaded.module.lm_head.weight.is_contiguous()
    put_back(loaded.module)
    assert not any(isinstance(layer, Prepacked) for layer in loaded.module.modules())
    loaded.module.save_pretrained(tmp_path / "b")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert torch.equal(again.lm_head.weight, loaded.module.lm_head.weight)


def test_other_precisions_stay_as_they_are() -> None:
    assert lay_out(a_model().to(torch.float16)) == 0


@needs_mkl
def test_it_is_told_how_they_lie() -> None:
    model = a_model()
    assert weights_of(model) == "float32 as the checkpoint has it"
    lay_out(model)
    assert weights_of(model).endswith("kept twice: more memory, faster verification of drafts")
    assert weights_of(model.to(torch.bfloat16)).startswith("bfloat16 as")


@needs_mkl
@torch.no_grad()
def test_rows_that_a_head_borrows_are_laid_out(tmp_path: Path) -> None:
    """They are no submodule of the head; with plain rows three tokens cost three times one."""
    model, ids = a_model(), torch.arange(0, 2048, 2)
    save_head(new_head(model, ids, seed=0, lends=True), tmp_path)
    rows = load_head(tmp_path, CausalModel(model, "target")).lent_rows
    assert isinstance(rows, Prepacked)
    states = torch.randn(3, 192)
    expected = states @ model.get_output_embeddings().weight[ids].T
    assert torch.allclose(rows(states), expected, atol=1e-5)
