"""How weights lie in memory changes neither what they are nor what is written."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from draftwise.nn.layout import lay_out, put_back, weights_of
from draftwise.nn.load import load_model

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no MKL here")


def a_model() -> LlamaForCausalLM:
    """Small, with some weights of more than a megabyte; input and output embeddings are one."""
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
    assert laid.model.layers[0].self_attn.q_proj.weight.is_contiguous()  # small: as it was
    for ours, theirs in zip(laid.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    ids = torch.randint(0, 2048, (2, 9), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(laid(ids).logits, model(ids).logits, atol=1e-5)
    assert lay_out(laid) == 0  # once


@needs_mkl
@torch.no_grad()
def test_a_loaded_model_is_laid_out_and_saved_as_it_was(tmp_path: Path) -> None:
    a_model().save_pretrained(tmp_path / "a")
    loaded = load_model(tmp_path / "a")
    assert not loaded.module.lm_head.weight.is_contiguous()
    put_back(loaded.module)
    loaded.module.save_pretrained(tmp_path / "b")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert torch.equal(again.lm_head.weight, loaded.module.lm_head.weight)


def test_other_precisions_stay_as_they_are() -> None:
    assert lay_out(a_model().to(torch.bfloat16)) == 0


@needs_mkl
def test_it_is_told_how_they_lie() -> None:
    model = a_model()
    assert weights_of(model) == "float32 as the checkpoint has it"
    lay_out(model)
    assert weights_of(model).endswith("it, large weights column by column")
    assert weights_of(model.to(torch.bfloat16)).startswith("bfloat16 as")
