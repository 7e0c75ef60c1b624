"""torchao and bitsandbytes checkpoints; each test skips without its package."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

from draftwise import Speculator
from draftwise.nn import layout
from draftwise.nn.load import load_model
from models import near_copy, tiny_model

PROMPTS = [[5, 6, 7, 8] * 3, [11, 12, 11], [*range(20, 40)]]
NEW = 40
SIZE = {"hidden_size": 64, "head_dim": 16}
"""The minimum widths for bitsandbytes' 4-bit kernel."""


def checkpoint(folder: Path, kind: str) -> Path:
    """A folder with a tiny model quantised by torchao, as saved by ``save_pretrained``."""
    quantisation = pytest.importorskip("torchao.quantization")
    return saved(folder, TorchAoConfig(getattr(quantisation, kind)()))


def saved(folder: Path, how: Any) -> Path:
    """A folder with a tiny model quantised with this configuration."""
    tiny_model(**SIZE).save_pretrained(folder / "whole")
    module = AutoModelForCausalLM.from_pretrained(
        folder / "whole", quantization_config=how, dtype=torch.float32
    )
    module.save_pretrained(folder / "made")
    return folder / "made"


def generated(module: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = module.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
    )
    return [int(token) for token in output[0, len(prompt) :]]


def test_int8_weights_are_served_losslessly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weight-only: forwards of different widths agree, and no weight gets another layout."""
    monkeypatch.setattr(layout, "LEAST_NUMEL", 1)
    module = load_model(checkpoint(tmp_path, "Int8WeightOnlyConfig")).module
    assert "Int8" in type(module.model.layers[0].mlp.up_proj.weight).__name__
    drafter = near_copy(tiny_model(**SIZE), 0.05)
    made = Speculator.from_pretrained(module, [drafter], policy="fixed:1", lengths=(4,))
    results = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in results] == [generated(module, p) for p in PROMPTS]
    assert 0 < results[0].stats.num_accepted < results[0].stats.num_drafted


def test_weights_of_four_bits_are_served_losslessly(tmp_path: Path) -> None:
    """bitsandbytes on a CPU."""
    pytest.importorskip("bitsandbytes")
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    module = load_model(saved(tmp_path, how)).module
    assert type(module.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    drafter = near_copy(tiny_model(**SIZE), 0.05)
    made = Speculator.from_pretrained(module, [drafter], policy="fixed:1", lengths=(4,))
    results = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in results] == [generated(module, p) for p in PROMPTS]
    assert results[0].stats.num_accepted


def test_bitsandbytes_layers() -> None:
    """By class name: 8-bit layers quantise activations (lossy), 4-bit layers only weights."""

    class Linear8bitLt(torch.nn.Linear):
        pass

    class Linear4bit(torch.nn.Linear):
        pass

    for kind, is_lossy in ((Linear8bitLt, True), (Linear4bit, False)):
        module = tiny_model()
        old = module.model.layers[1].mlp.up_proj
        new = kind(old.in_features, old.out_features, bias=False)
        new.weight = old.weight
        module.model.layers[1].mlp.up_proj = new
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            load_model(module)
        assert any("quantises activations" in str(one.message) for one in heard) is is_lossy
