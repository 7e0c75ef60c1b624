"""Attention of grouped heads: the library's own result, without its copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations import sdpa_attention

from draftwise.nn.attention import GROUPED
from draftwise.nn.load import load_model
from models import tiny_model


@torch.inference_mode()
def test_it_is_the_library_s_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask and more than one token nothing is repeated; the logits are the same."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    expected = tiny_model("llama")(ids, attention_mask=mask).logits
    ours = tiny_model("llama", attention=GROUPED)

    def repeated(*_: Any) -> Any:
        raise AssertionError("keys were copied for each head")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeated)
    assert (ours(ids, attention_mask=mask).logits - expected).abs().max() < 1e-5


@pytest.mark.parametrize(("groups", "name"), [(2, GROUPED), (4, "sdpa")])
def test_models_with_grouped_heads_are_loaded_with_it(
    tmp_path: Path, groups: int, name: str
) -> None:
    tiny_model("llama", num_key_value_heads=groups).save_pretrained(tmp_path)
    module = load_model(str(tmp_path), device="cpu").module
    assert module.config._attn_implementation == name
    assert tiny_model("llama").config._attn_implementation == "sdpa"
