"""Blocked weight layouts on CPUs: the same values, faster for the few tokens of a verification."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LEAST_NUMEL = 100_000  # smaller products take less time than the lookup of their blocks
SHARE = 0.25  # maximum fraction of the memory for second copies of weights
ROWS = 16  # rows that blocks are optimised for: 8 and 32 are no better over 2 to 64 rows
_LEAST_ROWS = {torch.float32: 3, torch.bfloat16: 4}
"""Fewer rows take longer and are padded to these: 1,536 x 576 in bfloat16 takes 153 us for one row,
169 for two, 134 for four (``docs/real_models.md``)."""


class Prepacked(nn.Linear):
    """A linear layer with a second copy of its weight in oneDNN's blocked layout.

    Products of 2 to 64 rows with a plain weight repack it each time; with blocks, eight rows cost
    little more than one (``docs/real_models.md``). Gradients, and weights that have changed or
    moved, use the ordinary product; copies of the layer have no blocks.
    """

    _blocks: Tensor | None = None
    _packed_from = (0, 0)
    _least_numel = 0

    def pack(self, least_rows: int) -> None:
        """Create the blocks; products of fewer rows read the weight itself."""
        weight = self.weight.detach()
        self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        self._packed_from = _mark(self.weight)
        self._least_numel = least_rows * self.in_features

    def forward(self, input: Tensor) -> Tensor:
        is_long = self._blocks is not None and input.numel() >= self._least_numel
        if torch.is_grad_enabled() or not is_long or not self._are_blocks_of(input.dtype):
            return super().forward(input)
        flat = input.flatten(0, -2)
        num, least = flat.shape[0], _LEAST_ROWS[flat.dtype]
        if num < least:
            flat = nn.functional.pad(flat, (0, 0, 0, least - num))
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            flat, self._blocks, self.bias, "none", [], ""
        )
        return found[:num].view(*input.shape[:-1], self.out_features)

    def _are_blocks_of(self, dtype: torch.dtype) -> bool:
        """Whether the blocks hold the present weight, for inputs of this dtype."""
        return dtype == self.weight.dtype and _mark(self.weight) == self._packed_from

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_blocks"}


def _mark(weight: Tensor) -> tuple[int, int]:
    """A value that changes when the weight is written or moved."""
    return weight.data_ptr(), weight._version


@torch.no_grad()
def lay_out(module: nn.Module) -> int:
    """Lay out the large linear weights of a CPU model for products of few rows; return how many.

    float32: column-major if there are at least as many outputs as inputs, which MKL reads faster
    for one row, and blocks for more rows. bfloat16: blocks, if the CPU has the instructions. Blocks
    are second copies, of at most ``SHARE`` of the memory. Values, shapes and names stay; results
    differ in rounding. Call ``put_back`` before saving.
    """
    done, left = 0, SHARE * _memory_bytes()
    turned: set[int] = set()
    for layer in module.modules():
        if type(layer) is not nn.Linear or not _is_served(layer.weight):
            continue
        weight = layer.weight
        is_turned = weight.dtype == torch.float32 and layer.out_features >= layer.in_features
        if is_turned and id(weight) not in turned and weight.is_contiguous():
            weight.data = weight.data.t().contiguous().t()
            turned.add(id(weight))  # tied weights are one tensor
        if weight.nbytes <= left:
            layer.__class__ = Prepacked
            assert isinstance(layer, Prepacked)
            layer.pack(least_rows=2 if weight.dtype == torch.float32 else 1)
            left -= weight.nbytes
        done += 1
    return done


@torch.no_grad()
def put_back(module: nn.Module) -> None:
    """Undo ``lay_out``: weights become row-major, which ``save_pretrained`` requires."""
    for layer in module.modules():
        if isinstance(layer, Prepacked):
            layer._blocks = None
            layer.__class__ = nn.Linear  # type: ignore[assignment]
    for weight in module.parameters():
        weight.data = weight.data.contiguous()


@torch.no_grad()
def pack_again(module: nn.Module) -> None:
    """Create the blocks again, from weights that may have changed without a trace."""
    for layer in module.modules():
        if isinstance(layer, Prepacked) and layer._blocks is not None and _is_served(layer.weight):
            layer.pack(layer._least_numel // layer.in_features)


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
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


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
