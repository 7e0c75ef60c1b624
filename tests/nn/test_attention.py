"""Attention of grouped heads: the library's own result, without its copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations import sdpa_attention

from draftwise.nn.attention import RAGGED
from draftwise.nn.load import load_model
from models import tiny_model


@torch.inference_mode()
def test_it_is_the_library_s_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask and more than one token nothing is repeated; the logits are the same."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    expected = tiny_model("llama")(ids, attention_mask=mask).logits
    ours = tiny_model("llama", attention=RAGGED)

    def repeated(*_: Any) -> Any:
        raise AssertionError("keys were copied for each head")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeated)
    assert (ours(ids, attention_mask=mask).logits - expected).abs().max() < 1e-5


def test_models_from_folders_are_loaded_with_it(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device="cpu")
    assert model.module.config._attn_implementation == RAGGED
    assert model.packs
    assert not load_model(tiny_model("llama")).packs, "a module that is handed in stays as it is"
