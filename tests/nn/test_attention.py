"""Grouped-query attention: transformers' result, without its copies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations import sdpa_attention

from draftwise.nn import attention
from draftwise.nn.attention import RAGGED
from draftwise.nn.load import load_model
from draftwise.nn.model import CausalModel
from models import tiny_model

pytestmark = pytest.mark.usefixtures("without_gradients")


def test_it_is_the_library_s_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask and several tokens, nothing is repeated, and the logits are the same."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    expected = tiny_model("llama")(ids, attention_mask=mask).logits
    ours = tiny_model("llama", attention=RAGGED)

    def repeated(*_: Any) -> Any:
        raise AssertionError("keys were copied for each head")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeated)
    assert (ours(ids, attention_mask=mask).logits - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_token_of_grouped_heads(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 the heads of a group become tokens of one head, with and without a mask."""
    config = tiny_model("llama").config
    assert config.num_attention_heads > config.num_key_value_heads
    torch.manual_seed(0)
    layer = SimpleNamespace(is_causal=True, num_key_value_groups=2)
    query = torch.randn(3, 4, 1, 8, dtype=dtype)
    key, value = torch.randn(2, 3, 2, 9, 8, dtype=dtype)
    masks = [None, torch.arange(9)[None, None, None] < torch.tensor([9, 4, 7])[:, None, None, None]]
    grouped: list[bool] = []

    def noted(*args: Any, enable_gqa: bool, **more: Any) -> torch.Tensor:
        grouped.append(enable_gqa)
        return scaled_dot_product_attention(*args, enable_gqa=enable_gqa, **more)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", noted)
    for mask in masks:
        found, _ = attention.ragged_attention(layer, query, key, value, mask)
        k, v = (x.double().repeat_interleave(2, 1) for x in (key, value))
        exact = scaled_dot_product_attention(query.double(), k, v, attn_mask=mask).transpose(1, 2)
        assert (found - exact).abs().max() < (1e-5 if dtype == torch.float32 else 0.02)
    assert grouped == [dtype == torch.float32] * 2


def test_models_from_folders_are_loaded_with_it(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device="cpu")
    assert model.module.config._attn_implementation == RAGGED
    assert model.packs
    assert not load_model(tiny_model("llama")).packs, "a module that is handed in stays as it is"


def test_values_narrower_than_keys() -> None:
    """Keys of 24 numbers and values of 16, as in DeepSeek."""
    torch.manual_seed(0)
    layer = SimpleNamespace(is_causal=True, num_key_value_groups=2)
    query, key = torch.randn(1, 4, 3, 24), torch.randn(1, 2, 9, 24)
    value, mask = torch.randn(1, 2, 9, 16), torch.ones(3, 9, dtype=torch.bool).tril(6)[None, None]
    found, _ = attention.ragged_attention(layer, query, key, value, mask)
    k, v = (x.repeat_interleave(2, 1) for x in (key, value))
    exact = scaled_dot_product_attention(query, k, v, attn_mask=mask).transpose(1, 2)
    assert (found - exact).abs().max() < 1e-5


def test_the_last_tokens_in_order_need_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU kernels for causal order must give the logits of an explicit mask."""
    texts = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]]
    for rows in ([0], [0, 1]):
        found = []
        for knows_order in (False, True):
            model = CausalModel(tiny_model("llama", attention=RAGGED), "tiny")
            assert not model._masks.knows_order, "only GPUs have kernels for it"
            model._masks.knows_order = knows_order
            if knows_order:
                monkeypatch.setattr(model._masks, "make", None)
            cache = model.new_cache(num_rows=2)
            for start, end in ((0, 3), (3, 7), (7, 8)):  # a prompt, a chain, a token
                fed = [texts[row][start:end] for row in rows]
                logits = model.extend(cache, rows, fed, keep=4)
            found.append(logits.flat)
        assert torch.equal(*found)


def test_order_is_kept_where_a_score_is_changed() -> None:
    torch.manual_seed(0)
    layer = SimpleNamespace(is_causal=True, num_key_value_groups=2)
    query, (key, value) = torch.randn(1, 4, 3, 8), torch.randn(2, 1, 2, 9, 8)
    mask = torch.ones(3, 9, dtype=torch.bool).tril(6)[None, None]
    for more in ({}, {"position_bias": torch.randn(1, 4, 3, 9)}):
        asked = [
            attention.ragged_attention(layer, query, key, value, given, **more)[0]
            for given in (attention.IN_ORDER, mask)
        ]
        assert (asked[0] - asked[1]).abs().max() < 1e-6
