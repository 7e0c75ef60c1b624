"""Hidden states by hooks: equal to transformers', for the chosen layers only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from draftwise.nn.cache import HiddenStateHooks
from draftwise.nn.model import CausalModel
from draftwise.nn.tiny import tiny_config, tiny_module

KINDS = ["llama", "gpt2", "gpt_neox", "opt", "gemma3_text", "qwen3_next", "falcon_h1", "mamba2"]
TEXT = [[5, 6, 7, 8, 9], [3, 4]]


def made(kind: str) -> Any:
    """A tiny random module of a type."""
    return tiny_module(tiny_config(CONFIG_MAPPING[kind]()))


def library(module: Any, text: list[int]) -> list[Tensor]:
    """All hidden states of one text, each [T, D], as returned by the library."""
    with torch.no_grad():
        output = module(input_ids=torch.tensor([text]), output_hidden_states=True)
    return [states[0] for states in output.hidden_states]


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_the_librarys(kind: str) -> None:
    model = CausalModel(made(kind), kind)
    model.tap([0, -2, -1])
    model.tap([1])
    cache = model.new_cache(2)
    with torch.inference_mode():
        found = model.extend(cache, [0, 1], TEXT, 1).hidden
    assert sorted(found) == sorted({0, 1, model.num_layers - 1, model.num_layers})
    for row, text in enumerate(TEXT):
        expected = library(model.module, text)
        for place, states in found.items():
            assert torch.allclose(states[row], expected[place], atol=1e-5), (place, row)


def test_no_other_layer_is_kept() -> None:
    module = made("llama")
    taps = HiddenStateHooks(module, module, module.config.num_hidden_layers)
    taps.ask([1])
    asked: list[dict[str, Any]] = []

    def forward(**options: Any) -> Any:
        asked.append(options)
        return module(**options)

    ids = torch.tensor([[5, 6, 7]])
    output, found = taps.call(forward, input_ids=ids)
    assert list(found) == [1]
    assert "output_hidden_states" not in asked[0]
    assert output.hidden_states is None
    assert not any(layer._forward_pre_hooks for layer in module.modules())  # no hook stays


def test_where_hooks_find_something_else_the_library_is_asked() -> None:
    module = made("llama")
    expected = library(module, [5, 6, 7])
    taps = HiddenStateHooks(module, module, module.config.num_hidden_layers)
    taps._layers = [module.model.layers[1], module.model.layers[0]]  # in the wrong order
    taps.ask([0])
    with torch.no_grad():
        output, found = taps.call(module, input_ids=torch.tensor([[5, 6, 7]]))
    assert torch.equal(found[0][0], expected[0])
    assert output.hidden_states is not None
    assert HiddenStateHooks(module, module, 77)._layers is None
