"""Products of few rows are the ordinary ones, of whatever weight, and leave the module alone."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import draftwise
from draftwise.compiled import HAS_NUMBA
from draftwise.nn import few_rows
from draftwise.nn.few_rows import FewRows, Linears, most_rows
from draftwise.nn.layout import lay_out, put_back, weights_of
from draftwise.nn.model import weights_mark

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def on_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU that emulates bfloat16, and one thread; without numba, the kernel runs in Python."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(few_rows, "HAS_NUMBA", True)
    monkeypatch.setattr(few_rows, "has_bfloat16", lambda: False)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each product of the kernel."""
    found: list[int] = []
    kernel = few_rows.few_rows

    def counted(x: object, weight: object, y: object) -> None:
        found.append(len(x))  # type: ignore[arg-type]
        kernel(x, weight, y)  # type: ignore[arg-type]

    monkeypatch.setattr(few_rows, "few_rows", counted)
    return found


def a_layer(
    outputs: int = 70, inputs: int = 800, dtype: torch.dtype = torch.float32, bias: bool = True
) -> FewRows:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias).to(dtype)
    assert lay_out(layer) == 1
    assert isinstance(layer, FewRows)
    return layer


def a_model(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=800, hidden_size=128, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def exact(layer: nn.Linear, states: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.double()
    return nn.functional.linear(states.double(), layer.weight.double(), bias)


slow = pytest.mark.skipif(not HAS_NUMBA, reason="uncompiled, large products take minutes")


@slow
@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 800), (800, 70), (33, 1543), (7000, 9)])
def test_products_of_every_number_of_rows(
    dtype: torch.dtype, shape: tuple[int, int], calls: list[int]
) -> None:
    layer = a_layer(*shape, dtype)
    close = 1e-5 if dtype == torch.float32 else 2e-2
    most = most_rows(layer.weight)
    for num in [*range(1, 20), most, most + 1, 130]:
        calls.clear()
        states = torch.randn(1, num, shape[1], 2).to(dtype)[..., 0]  # rows are not contiguous
        found = layer(states)
        assert found.dtype == dtype
        assert found.shape == (1, num, shape[0])
        assert torch.allclose(found.double(), exact(layer, states), atol=close, rtol=close)
        assert calls == [num] * (num <= most)


@slow
@torch.no_grad()
def test_a_row_is_the_same_beside_any_others() -> None:
    """Rows of a group do not mix: other values beside a row leave its product as it is."""
    layer = a_layer()
    for num in range(2, 17):
        states = torch.randn(num, 800)
        others = torch.randn(num, 800)
        others[num // 2] = states[num // 2]
        assert torch.equal(layer(states)[num // 2], layer(others)[num // 2])


@slow
@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nan_stay(dtype: torch.dtype) -> None:
    layer = a_layer(dtype=dtype, bias=False)
    layer.weight.abs_()
    states = torch.ones(4, 800, dtype=dtype)
    states[1, 3], states[2, 5], states[3, 7] = torch.inf, -torch.inf, torch.nan
    found = layer(states)
    assert found[0].isfinite().all()
    assert (found[1] == torch.inf).all()
    assert (found[2] == -torch.inf).all()
    assert found[3].isnan().all()


@slow
@torch.no_grad()
def test_bfloat16_is_rounded_once() -> None:
    layer = a_layer(dtype=torch.bfloat16)
    for num in (1, 2, 4, 8, 40):  # 40: widened
        states = torch.randn(num, 800).bfloat16()
        right = exact(layer, states)
        error = (layer(states).double() - right).abs()
        assert (error <= right.abs() * 2**-8 + 1e-5).all()


def test_the_ordinary_product_serves_the_rest(calls: list[int]) -> None:
    layer, states = a_layer(), torch.randn(2, 800)
    ordinary = nn.functional.linear(states, layer.weight, layer.bias)
    layer(states).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(states).dtype == torch.bfloat16
        assert layer(states[:0]).shape == (0, 70)
        torch.set_num_threads(2)
        assert torch.equal(layer(states), ordinary)
        torch.set_num_threads(1)
        layer.weight.data = layer.weight.data.t().contiguous().t()
        assert torch.allclose(layer(states), ordinary, atol=1e-5)
        with pytest.raises(RuntimeError, match="dtype"):
            layer(states.double())
        with pytest.raises(RuntimeError, match="shape"):
            layer(torch.randn(2, 400))
    assert calls == []


@slow
@torch.no_grad()
def test_a_weight_that_changed_is_read(calls: list[int]) -> None:
    states = torch.randn(2, 800)
    for change in (
        lambda layer: layer.weight.data.mul_(2),
        lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
        lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
        lambda layer: layer.double(),
    ):
        layer = a_layer()
        change(layer)
        given = states.to(layer.weight.dtype)
        ordinary = nn.functional.linear(given, layer.weight, layer.bias)
        assert torch.allclose(layer(given), ordinary, atol=1e-5)
    assert calls == [2, 2, 2]


@slow
@torch.no_grad()
def test_the_default_dtype_changes_nothing() -> None:
    layer, states = a_layer(), torch.randn(2, 800)
    expected = layer(states)
    for default in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(default)
        try:
            assert torch.equal(layer(states), expected)
        finally:
            torch.set_default_dtype(torch.float32)


@slow
@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
def test_someone_elses_module_is_itself_again(dtype: torch.dtype, calls: list[int]) -> None:
    model = a_model(dtype)
    kinds = [type(one) for one in model.modules()]
    mark, saved = weights_mark(model), pickle.dumps(model)
    ids = torch.arange(5)[None]
    expected = model(ids).logits
    assert calls == []
    close = 1e-5 if dtype == torch.float32 else 0.05
    with Linears(model).fast():
        assert torch.allclose(model(ids).logits, expected, atol=close)
    assert calls == [5] * 7  # gate, up and down of two layers, and the output layer
    with pytest.raises(IndexError), Linears(model).fast():
        model(ids + 800)  # no such token
    assert [type(one) for one in model.modules()] == kinds
    assert weights_mark(model) == mark
    assert pickle.dumps(model) == saved
    assert torch.equal(model(ids).logits, expected)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None  # nothing is kept alive


@slow
@torch.no_grad()
def test_generate_uses_it_within_a_call(calls: list[int]) -> None:
    model = a_model()
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    plain = model.generate(ids, max_new_tokens=12, do_sample=False)
    fast = draftwise.transformers("lookup")
    assert torch.equal(
        model.generate(ids, max_new_tokens=12, do_sample=False, custom_generate=fast), plain
    )
    assert calls
    assert not any(isinstance(one, FewRows) for one in model.modules())


@torch.no_grad()
def test_layers_of_other_classes_stay() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model = nn.Sequential(Scaled(800, 70), nn.Linear(8, 8), nn.Linear(800, 70, dtype=torch.float64))
    assert lay_out(model) == 0
    assert [type(one) for one in model] == [Scaled, nn.Linear, nn.Linear]


def test_copies_and_files_have_it_too() -> None:
    layer = a_layer()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin.weight, layer.weight)
    model = a_model()
    lay_out(model)
    assert weights_of(model) == "float32 as the checkpoint has it"  # no second copies
    put_back(model)
    assert not any(isinstance(one, FewRows) for one in model.modules())


def test_without_emulation_bfloat16_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    layer = a_layer(dtype=torch.bfloat16)
    monkeypatch.setattr(few_rows, "has_bfloat16", lambda: True)
    with torch.no_grad():
        layer(torch.randn(2, 800).bfloat16())
    assert calls == []
    assert not Linears(layer)._layers
