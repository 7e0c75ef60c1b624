"""Recurrences: replaying kept tokens gives the state of transformers' kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from draftwise.nn.recurrent import FAMILIES, STEPS, Call, Family, bound_arguments, states_after

ROWS, TOKENS, HEADS, SIZE, STATE = 2, 6, 4, 8, 5
MODULES: dict[str, Any] = {
    "torch_chunk_gated_delta_rule": qwen,
    "chunk_kimi_delta_attention": kimi,
    "mamba2_chunk_scan": mamba2,
}


def inputs(family: Family, num: int = TOKENS) -> tuple[dict[str, Any], Tensor]:
    """A layer's inputs to the chunk kernel for some tokens, and an initial state."""
    torch.manual_seed(3)
    if "delta" in family.chunk:
        shape = (ROWS, num, HEADS, SIZE)
        decay = (ROWS, num, HEADS, SIZE) if "kimi" in family.chunk else (ROWS, num, HEADS)
        told: dict[str, Any] = {name: torch.randn(shape) for name in ("query", "key", "value")}
        told |= {"g": -torch.rand(decay), "beta": torch.rand(ROWS, num, HEADS)}
        return told | {"use_qk_l2norm_in_kernel": True}, torch.randn(ROWS, HEADS, SIZE, SIZE)
    told = {
        "hidden_states": torch.randn(ROWS, num, HEADS, SIZE),
        "dt": torch.randn(ROWS, num, HEADS),
        "A": -torch.rand(HEADS),
        "B": torch.randn(ROWS, num, 2, STATE),
        "C": torch.randn(ROWS, num, 2, STATE),
        "chunk_size": 4,
        "D": torch.randn(HEADS),
        "dt_bias": torch.randn(HEADS),
        "dt_softplus": True,
    }
    return told, torch.randn(ROWS, HEADS, SIZE, STATE)


def call(family: Family, num: int = TOKENS, from_zero: bool = False) -> Call:
    told, state = inputs(family, num)
    module = MODULES[family.chunk]
    kernels = getattr(module, family.chunk), getattr(module, family.step)
    return Call(family, *kernels, told, None if from_zero else state)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.chunk)
@pytest.mark.parametrize("from_zero", [False, True])
def test_run_again_over_the_tokens_kept(family: Family, from_zero: bool) -> None:
    """After n of T tokens each row has the state that feeding it those n tokens alone gives."""
    whole = call(family, from_zero=from_zero)
    output, state = whole.run()
    for num in range(1, TOKENS + 1):
        for row in range(ROWS):
            part = Call(
                family,
                whole.chunk,
                whole.step,
                family.cut(whole.arguments, row, num),
                None if whole.state is None else whole.state[row : row + 1],
            )
            alone_output, alone = part.run()
            torch.testing.assert_close(whole.after(row, num), alone, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                output[row : row + 1, :num], alone_output, rtol=1e-4, atol=1e-5
            )
    torch.testing.assert_close(whole.after(0, TOKENS), state[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.chunk)
def test_steps_agree_with_chunks(family: Family) -> None:
    from_zero = call(family, from_zero=True)
    shape = call(family).state
    assert shape is not None
    output, state = family.run(from_zero.step, from_zero.arguments, torch.zeros_like(shape), [])
    chunk_output, chunk_state = from_zero.run()
    torch.testing.assert_close(output, chunk_output, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, chunk_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.chunk)
def test_a_long_feed_from_a_state(family: Family) -> None:
    """Inputs too long for single steps are processed in chunks, from an initial state."""
    num = 3 * STEPS
    whole = call(family, num)
    _, state = whole.run()
    steps = family.run(whole.step, whole.arguments, whole.state.clone(), [])[1]  # type: ignore[union-attr]
    torch.testing.assert_close(state, steps, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.chunk)
def test_what_it_started_from_stays_as_it_was(family: Family) -> None:
    """The library's step kernels work in place, but rollback needs the initial state unchanged."""
    made = call(family)
    assert made.state is not None
    before = made.state.clone()
    made.run()
    made.after(1, 3)
    torch.testing.assert_close(made.state, before, rtol=0, atol=0)


def test_arguments_by_name() -> None:
    def kernel(a: int, b: int = 2, **kwargs: int) -> None: ...

    assert bound_arguments(kernel, (1,), {"b": 3, "c": 4}) == {"a": 1, "b": 3, "c": 4}


@pytest.mark.parametrize(("rows", "nums"), [([0, 1], [2, 5]), ([1], [3]), ([1, 0], [4, 1])])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.chunk)
def test_rows_and_layers_run_again_as_one(family: Family, rows: list[int], nums: list[int]) -> None:
    layers = [call(family), call(family)]
    for tensor in layers[1].arguments.values():
        if isinstance(tensor, Tensor):
            tensor.mul_(0.9)
    made = states_after(layers, rows, nums)
    assert (made is not None) == ("delta" in family.chunk)
    for layer, states in zip(layers, made or (), strict=False):
        for row, num, state in zip(rows, nums, states, strict=True):
            assert torch.allclose(state, layer.after(row, num), atol=1e-6)


def test_what_cannot_run_as_one_does_not() -> None:
    delta = FAMILIES[0]
    assert states_after([call(delta)], [0], [2]) is None
    assert states_after([call(delta), call(delta, from_zero=True)], [0], [2]) is None
    assert states_after([call(delta), call(delta, num=TOKENS + 1)], [0], [2]) is None
    assert states_after([call(delta, STEPS + 4)] * 2, [0], [STEPS + 2]) is None
