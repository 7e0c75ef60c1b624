"""Products of a few rows with a weight as it lies in memory, in one pass over it.

On one CPU thread a forward of a few tokens takes as long as reading the weights, if the products
allow it. Those of the libraries take up to three times as long for 2 to 16 rows as for one
(``docs/lab/reproduction/pretrained.md``, "cost of a forward"), which is the price of a verified
token.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from draftwise.compiled import HAS_NUMBA, compiled, warms_up

Singles = NDArray[np.float32]
Halves = NDArray[np.uint16]  # bfloat16, which numpy lacks
LEAST_NUMEL = 50_000  # smaller products take less time than the call of a compiled function
GROUP = 8  # rows in one pass: their sums stay in registers
LEAST_WIDENED = 5  # rows from which a bfloat16 weight is widened rather than emulated
PART = 32  # outputs before the next group of rows: their weights stay in the second cache
_sums = partial(compiled, fastmath={"reassoc", "contract", "nsz"})
"""Sums in any order, several at a time; infinities and NaN keep their meaning."""


@_sums
def _value(number: Any, size: int) -> Any:
    """A float32; size: 2 if the number is the upper half of its bits."""
    if size == 2:
        return np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)
    return np.float32(number)


# the rows of a group are written out, since only sums in names of their own become registers; rows
# that a group lacks are its last one again


@_sums
def _one(a: Any, weight: Any, y: Any) -> None:
    for o in range(len(weight)):
        w, s = weight[o], np.float32(0)
        for i in range(len(a)):
            s += a[i] * _value(w[i], weight.itemsize)
        y[o] = s


@_sums
def _two(x: Any, weight: Any, y: Any) -> None:
    xa, xb = x[0], x[1]
    for o in range(len(weight)):
        w = weight[o]
        sa = sb = np.float32(0)
        for i in range(len(xa)):
            v = _value(w[i], weight.itemsize)
            sa += xa[i] * v
            sb += xb[i] * v
        y[0, o], y[1, o] = sa, sb


@_sums
def _four(x: Any, weight: Any, y: Any) -> None:
    d = len(x) - 1
    xa, xb, xc, xd = x[0], x[1], x[2], x[d]
    for o in range(len(weight)):
        w = weight[o]
        sa = sb = sc = sd = np.float32(0)
        for i in range(len(xa)):
            v = _value(w[i], weight.itemsize)
            sa += xa[i] * v
            sb += xb[i] * v
            sc += xc[i] * v
            sd += xd[i] * v
        y[0, o], y[1, o], y[2, o], y[d, o] = sa, sb, sc, sd


@_sums
def _eight(x: Any, weight: Any, y: Any) -> None:
    last = len(x) - 1
    f, g, h = min(5, last), min(6, last), min(7, last)
    xa, xb, xc, xd, xe, xf, xg, xh = x[0], x[1], x[2], x[3], x[4], x[f], x[g], x[h]
    for o in range(len(weight)):
        w = weight[o]
        sa = sb = sc = sd = se = sf = sg = sh = np.float32(0)
        for i in range(len(xa)):
            v = _value(w[i], weight.itemsize)
            sa += xa[i] * v
            sb += xb[i] * v
            sc += xc[i] * v
            sd += xd[i] * v
            se += xe[i] * v
            sf += xf[i] * v
            sg += xg[i] * v
            sh += xh[i] * v
        y[0, o], y[1, o], y[2, o], y[3, o] = sa, sb, sc, sd
        y[4, o], y[f, o], y[g, o], y[h, o] = se, sf, sg, sh


@compiled
def few_rows(x: Singles, weight: Singles | Halves, y: Singles) -> None:
    """y = x weight^T; x: [N, I], weight: [O, I], y: [N, O], all contiguous."""
    for start in range(0, len(weight), PART):
        w = weight[start : start + PART]
        for first in range(0, len(x), GROUP):
            a, out = x[first : first + GROUP], y[first : first + GROUP, start : start + PART]
            if len(a) == 1:
                _one(a[0], w, out[0])
            elif len(a) == 2:
                _two(a, w, out)
            elif len(a) <= 4:
                _four(a, w, out)
            else:
                _eight(a, w, out)


@warms_up
def _warm_up() -> None:
    """In float32; for weights in bfloat16, the self-check of a model compiles it."""
    few_rows(*(np.zeros(shape, np.float32) for shape in ((1, 8), (4, 8), (1, 4))))


class FewRows(nn.Linear):
    """A linear layer that multiplies a few rows by ``few_rows``; the weight stays as it is.

    Where products in bfloat16 are emulated, more rows are multiplied in float32, and rounded. The
    ordinary product serves gradients, autocast, compilation, and whatever else is no contiguous
    tensor of the CPU in one of these dtypes; on several threads, it serves all that is left.
    """

    def forward(self, input: Tensor) -> Tensor:
        num, weight = input.numel() // self.in_features, self.weight
        is_half = weight.dtype is torch.bfloat16
        if num == 0 or not _are_plain(input, weight):
            return super().forward(input)
        if can_multiply() and num <= most_rows(weight):
            y = product(input.reshape(num, -1), weight)
        elif is_half and num >= LEAST_WIDENED:
            y = nn.functional.linear(input.float(), weight.float())
        else:
            return super().forward(input)
        if self.bias is not None:
            y += self.bias
        return y.view(*input.shape[:-1], self.out_features).to(input.dtype)


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """[N, O] in float32; rows: [N, I], weight: [O, I], contiguous float32 or bfloat16."""
    x, w = rows.float().contiguous(), weight.detach()
    y = x.new_empty(len(x), len(w))  # whatever torch.set_default_dtype says
    few_rows(
        x.numpy(), (w if w.dtype is torch.float32 else w.view(torch.uint16)).numpy(), y.numpy()
    )
    return y


def most_rows(weight: Tensor) -> int:
    """Up to how many rows ``few_rows`` takes less time than the product that would be next.

    Measured on AVX2 in float32: 16 for 576 x 576 and 576 x 1,536, 64 for an output layer of
    49,152 x 576. In bfloat16: 32 to 64, since a weight takes as long to widen as 16 rows.
    """
    num_outputs, num_inputs = weight.shape
    least = 2 if weight.dtype is torch.float32 else 4
    return GROUP * min(8, max(least, num_outputs // num_inputs))


def can_multiply() -> bool:
    """Whether ``few_rows`` is compiled here, and torch has the one thread that it uses."""
    return HAS_NUMBA and torch.get_num_threads() == 1 and is_x86()


@cache
def is_x86() -> bool:
    """Whether torch multiplies by MKL and oneDNN, with which ``few_rows`` was compared."""
    backends: Any = torch.backends  # untyped
    return bool(backends.mkl.is_available() and backends.mkldnn.is_available())


@cache
def has_bfloat16() -> bool:
    """Whether products in bfloat16 are not emulated on this CPU."""
    return not is_x86() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_served(weight: Any) -> bool:
    """Whether a weight is large, and one whose products ``FewRows`` makes faster."""
    is_plain = type(weight) is nn.Parameter and type(weight.data) is Tensor
    if not (is_plain and weight.numel() >= LEAST_NUMEL and weight.is_cpu):
        return False
    return can_multiply() if weight.dtype is torch.float32 else _is_emulated(weight)


def _is_emulated(weight: Tensor) -> bool:
    return weight.dtype is torch.bfloat16 and not has_bfloat16()


def _are_plain(input: Tensor, weight: Tensor) -> bool:
    is_forward = not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
    is_eager = type(input) is Tensor and not torch.compiler.is_compiling()
    is_here = input.is_cpu and weight.is_cpu and weight.is_contiguous()
    is_known = weight.dtype is torch.float32 or _is_emulated(weight)
    return is_forward and is_eager and is_here and is_known and input.dtype is weight.dtype


class Linears:
    """The large linear layers of a module, which multiply few rows fast while they are ``fast``.

    The module is someone else's: outside of ``fast`` its layers are of their own class. They are
    not kept alive.
    """

    def __init__(self, module: Any) -> None:
        found = (one for one in module.modules() if type(one) is nn.Linear)
        self._layers = [weakref.ref(one) for one in found if is_served(one.weight)]

    @contextmanager
    def fast(self) -> Iterator[None]:
        layers = [one for ref in self._layers if type(one := ref()) is nn.Linear]
        for layer in layers:
            layer.__class__ = FewRows
        try:
            yield
        finally:
            for layer in layers:
                layer.__class__ = nn.Linear
