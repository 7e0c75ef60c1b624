"""Weight layouts on CPUs: the same values, faster for the few tokens of a verification."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwise.nn.few_rows import (
    FewRows,
    can_multiply,
    has_bfloat16,
    is_served,
    is_x86,
    product,
)

LEAST_NUMEL = 150_000  # smaller products take less time than the lookup of their blocks
SHARE = 0.25  # maximum fraction of the memory for second copies of weights
FEW = 4  # rows up to which one pass over a weight is faster than its blocks
ROWS = 16  # rows that blocks are optimised for: 8 and 32 are no better over 2 to 64 rows
_LEAST_ROWS = {torch.float32: 3, torch.bfloat16: 4}
"""Fewer rows take longer and are padded to these: 1,536 x 576 in bfloat16 takes 153 us for one row,
169 for two, 134 for four (``docs/real_models.md``)."""


class Prepacked(nn.Linear):
    """A linear layer with a second copy of its weight in oneDNN's blocked layout.

    Products of 2 to 64 rows with a plain weight repack it each time; with blocks, eight rows cost
    little more than one (``docs/real_models.md``). In float32, up to ``FEW`` rows take one pass
    over the weight itself where that is compiled, which is faster yet. Gradients, and weights that
    have changed or moved, use the ordinary product; copies of the layer have no blocks.
    """

    _blocks: Tensor | None = None
    _packed_from = (0, 0)
    _least_rows = 1  # of products with blocks
    _is_read_once = False  # by ``few_rows``

    def pack(self) -> None:
        """Create the blocks."""
        weight = self.weight.detach()
        self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        self._packed_from = _mark(self.weight)
        self._is_read_once = weight.dtype == torch.float32 and weight.is_contiguous()
        if weight.dtype == torch.float32:
            self._least_rows = FEW if weight.is_contiguous() else 2

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self._are_blocks_of(input.dtype):
            return super().forward(input)
        num = input.numel() // self.in_features
        if 0 < num <= FEW and self._is_read_once and can_multiply():
            found = product(input.reshape(num, -1), self.weight)
            found = found if self.bias is None else found + self.bias
        elif num >= self._least_rows:
            found = self._blocked(input, num)
        else:
            return super().forward(input)
        return found.view(*input.shape[:-1], self.out_features)

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
        return {name: value for name, value in self.__dict__.items() if name != "_blocks"}


def _mark(weight: Tensor) -> tuple[int, int]:
    """A value that changes when the weight is written or moved."""
    return weight.data_ptr(), weight._version


@torch.no_grad()
def lay_out(module: nn.Module) -> int:
    """Lay out the large linear weights of a CPU model for products of few rows; return how many.

    float32: ``FewRows`` on one thread without AVX-512, else blocks for five rows and more. Where
    ``few_rows`` cannot run, column-major if there are more outputs than inputs, which MKL reads
    faster for one row, and blocks for two rows and more. bfloat16: blocks if the CPU has the
    instructions, else ``FewRows``. Blocks are second copies, of at most ``SHARE`` of the memory.
    Values, shapes and names stay; results differ in rounding. Call ``put_back`` before saving.
    """
    done, left = 0, SHARE * _memory_bytes()
    turned: set[int] = set()
    for layer in module.modules():
        if type(layer) is not nn.Linear:
            continue
        if is_served(layer.weight) and not _is_faster_in_blocks(layer.weight):
            layer.__class__ = FewRows
            done += 1
            continue
        if not _is_served(layer.weight):
            continue
        weight = layer.weight
        is_wide = weight.dtype == torch.float32 and layer.out_features > layer.in_features
        if is_wide and not can_multiply() and id(weight) not in turned and weight.is_contiguous():
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
            layer._blocks = None
        if isinstance(layer, (Prepacked, FewRows)):
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
    is_plain = type(weight.data) is Tensor  # not torchao's, whose dtype is float32
    is_here = weight.device.type == "cpu" and is_plain and not weight.is_inference()
    if not (is_here and is_x86() and hasattr(os, "sysconf") and weight.numel() >= LEAST_NUMEL):
        return False
    if weight.dtype == torch.bfloat16:
        return has_bfloat16()
    return weight.dtype == torch.float32


def _is_faster_in_blocks(weight: Tensor) -> bool:
    """oneDNN's kernels of AVX-512 beat ``few_rows`` from five rows on, those of AVX2 do not."""
    has_blocks = _is_served(weight) and weight.dtype == torch.float32
    return has_blocks and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


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
