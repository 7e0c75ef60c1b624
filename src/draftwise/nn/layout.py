"""Weight layouts on CPUs: the same values, faster for the few tokens of a verification."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from draftwise.compiled import HAS_NUMBA, compiled, warms_up

Singles = NDArray[np.float32]
LEAST_NUMEL = 150_000  # smaller products take less time than the lookup of their blocks
SHARE = 0.25  # maximum fraction of the memory for second copies of weights
ROWS = 16  # rows that blocks are optimised for: 8 and 32 are no better over 2 to 64 rows
_LEAST_ROWS = {torch.float32: 3, torch.bfloat16: 4}
"""Fewer rows take longer and are padded to these: 1,536 x 576 in bfloat16 takes 153 us for one row,
169 for two, 134 for four (``docs/real_models.md``)."""
FEW = 4  # rows of ``few_rows``
STRIDE = 8  # inputs at a time: more sums in registers, fewer passes over the outputs
WIDE = 1024  # outputs from which walking along them is faster than blocks
PART = 2048  # outputs at a time: their sums stay in the first cache


@compiled
def _eight(x: Any, i: int) -> Any:
    return x[i], x[i + 1], x[i + 2], x[i + 3], x[i + 4], x[i + 5], x[i + 6], x[i + 7]


@compiled
def _dot(a: Any, b: Any) -> Any:
    left = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]
    return left + a[4] * b[4] + a[5] * b[5] + a[6] * b[6] + a[7] * b[7]


@compiled
def few_rows(x: Singles, weight: Singles, y: Singles) -> None:
    """y = x weight in one pass over the weight, which costs four rows little more than one.

    x: [N, I] of up to 4 rows, weight: [I, O], y: [4, O], whose first N rows are the product; all
    contiguous, I a multiple of ``STRIDE``.
    """
    x0, x1, x2, x3 = x[0], x[min(1, len(x) - 1)], x[min(2, len(x) - 1)], x[len(x) - 1]
    for start in range(0, weight.shape[1], PART):
        end = min(weight.shape[1], start + PART)
        y[:, start:end] = 0.0
        y0, y1, y2, y3 = y[0, start:end], y[1, start:end], y[2, start:end], y[3, start:end]
        for i in range(0, weight.shape[0], STRIDE):
            a, b, c, d = _eight(x0, i), _eight(x1, i), _eight(x2, i), _eight(x3, i)
            w0, w1, w2, w3, w4, w5, w6, w7 = _eight(weight, i)
            left = w0[start:end], w1[start:end], w2[start:end], w3[start:end]
            right = w4[start:end], w5[start:end], w6[start:end], w7[start:end]
            for o in range(end - start):
                v = (
                    left[0][o], left[1][o], left[2][o], left[3][o],
                    right[0][o], right[1][o], right[2][o], right[3][o],
                )  # fmt: skip
                y0[o] += _dot(a, v)
                y1[o] += _dot(b, v)
                y2[o] += _dot(c, v)
                y3[o] += _dot(d, v)


@warms_up
def _few_rows() -> None:
    few_rows(*(np.zeros(shape, np.float32) for shape in ((4, 8), (8, 4), (4, 4))))


class Prepacked(nn.Linear):
    """A linear layer with a second copy of its weight in oneDNN's blocked layout.

    Products of 2 to 64 rows with a plain weight repack it each time; with blocks, eight rows cost
    little more than one (``docs/real_models.md``). In float32, up to three or four rows take a pass
    over the weight itself, which is faster yet. Gradients, and weights that have changed or moved,
    use the ordinary product; copies of the layer have no blocks.
    """

    _blocks: Tensor | None = None
    _packed_from = (0, 0)
    _least_rows = 1  # of products with blocks
    _columns: Singles | None = None  # [I, O] the weight, if it is column-major and wide

    def pack(self) -> None:
        """Create the blocks."""
        weight = self.weight.detach()
        self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        self._packed_from = _mark(self.weight)
        self._columns, self._least_rows = None, 1
        if weight.dtype == torch.float32:
            is_turned = not weight.is_contiguous()
            if HAS_NUMBA and is_turned and len(weight) >= WIDE and weight.shape[1] % STRIDE == 0:
                self._columns = weight.t().numpy()
            self._least_rows = 2 if is_turned else FEW

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self._are_blocks_of(input.dtype):
            return super().forward(input)
        num = input.numel() // self.in_features
        if self._columns is not None and 1 < num <= FEW and torch.get_num_threads() == 1:
            found = self._few_rows(input.detach().reshape(num, -1), self._columns)
        elif num >= self._least_rows:
            found = self._blocked(input, num)
        else:
            return super().forward(input)
        return found.view(*input.shape[:-1], self.out_features)

    def _few_rows(self, rows: Tensor, columns: Singles) -> Tensor:
        y = rows.new_empty(FEW, self.out_features)  # whatever torch.set_default_dtype says
        few_rows(rows.contiguous().numpy(), columns, y.numpy())
        found = y[: len(rows)]
        return found if self.bias is None else found + self.bias

    def _blocked(self, input: Tensor, num: int) -> Tensor:
        least = _LEAST_ROWS[input.dtype]
        if num < least:
            input = nn.functional.pad(input.reshape(num, -1), (0, 0, 0, least - num))
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            input, self._blocks, self.bias, "none", [], ""
        )
        return found if num >= least else found[:num]

    def _are_blocks_of(self, dtype: torch.dtype) -> bool:
        """Whether the blocks hold the present weight, for inputs of this dtype."""
        is_packed = self._blocks is not None and dtype == self.weight.dtype
        return is_packed and _mark(self.weight) == self._packed_from

    def __getstate__(self) -> dict[str, Any]:
        copies = {"_blocks", "_columns"}
        return {name: value for name, value in self.__dict__.items() if name not in copies}


def _mark(weight: Tensor) -> tuple[int, int]:
    """A value that changes when the weight is written or moved."""
    return weight.data_ptr(), weight._version


@torch.no_grad()
def lay_out(module: nn.Module) -> int:
    """Lay out the large linear weights of a CPU model for products of few rows; return how many.

    float32: column-major if there are more outputs than inputs, which MKL reads faster for one row,
    and blocks for more rows. bfloat16: blocks, if the CPU has the instructions. Blocks
    are second copies, of at most ``SHARE`` of the memory. Values, shapes and names stay; results
    differ in rounding. Call ``put_back`` before saving.
    """
    done, left = 0, SHARE * _memory_bytes()
    turned: set[int] = set()
    for layer in module.modules():
        if type(layer) is not nn.Linear or not _is_served(layer.weight):
            continue
        weight = layer.weight
        is_turned = weight.dtype == torch.float32 and layer.out_features > layer.in_features
        if is_turned and id(weight) not in turned and weight.is_contiguous():
            weight.data = weight.data.t().contiguous().t()
            turned.add(id(weight))  # tied weights are one tensor
        if weight.nbytes <= left:
            layer.__class__ = Prepacked
            assert isinstance(layer, Prepacked)
            layer.pack()
            left -= weight.nbytes
        done += 1
    return done


@torch.no_grad()
def put_back(module: nn.Module) -> None:
    """Undo ``lay_out``: weights become row-major, which ``save_pretrained`` requires."""
    for layer in module.modules():
        if isinstance(layer, Prepacked):
            layer._blocks = layer._columns = None
            layer.__class__ = nn.Linear  # type: ignore[assignment]
    for weight in module.parameters():
        weight.data = weight.data.contiguous()


@torch.no_grad()
def pack_again(module: nn.Module) -> None:
    """Create the blocks again, from weights that may have changed without a trace."""
    for layer in module.modules():
        if isinstance(layer, Prepacked) and layer._blocks is not None and _is_served(layer.weight):
            layer.pack()


def is_packed(module: nn.Module) -> bool:
    return any(isinstance(layer, Prepacked) for layer in module.modules())


def _is_served(weight: Tensor) -> bool:
    backends: Any = torch.backends  # untyped; x86 builds have both
    has_kernels = backends.mkl.is_available() and backends.mkldnn.is_available()
    is_plain = type(weight.data) is Tensor  # not torchao's, whose dtype is float32
    is_here = weight.device.type == "cpu" and is_plain and not weight.is_inference()
    if not (is_here and has_kernels and hasattr(os, "sysconf") and weight.numel() >= LEAST_NUMEL):
        return False
    if weight.dtype == torch.bfloat16:
        return has_bfloat16()
    return weight.dtype == torch.float32


def has_bfloat16() -> bool:
    """Whether products in bfloat16 are not emulated on this CPU."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16 numbers."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # earlier torch has none
    return bool(found.get("avx512_bf16"))


def _memory_bytes() -> int:
    """Memory of the machine in bytes, or the container's limit if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(text)) if text.isdigit() else total


def weights_of(module: nn.Module) -> str:
    """A module's precision and weight layout, in words.

    >>> weights_of(nn.Linear(8, 8))
    'float32 as the checkpoint has it'
    """
    dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
    cost = "; large weights are kept twice: more memory, faster verification of drafts"
    return f"{dtype} as the checkpoint has it{cost if is_packed(module) else ''}"


def emulates(module: nn.Module) -> bool:
    """Whether a CPU computes in bfloat16 without instructions for it."""
    weight = next(module.parameters())
    is_here = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return is_here and not has_bfloat16()
