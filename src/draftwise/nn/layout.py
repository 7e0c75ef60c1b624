"""How weights lie in memory: the same numbers, read faster by the few rows of a verification."""

from __future__ import annotations

import torch
from torch import nn

LEAST_BYTES = 1 << 20
"""Smaller weights stay in a core's cache, where their order makes no difference."""


@torch.no_grad()
def lay_out(module: nn.Module) -> int:
    """Keep the large weights of linear layers column by column; how many were laid out anew.

    MKL reads [out, in] weights row by row well for hundreds of tokens and poorly for the 1 to 16 of
    a verification; column by column it is faster for all of them (``docs/real_models.md``). Shapes,
    values and names stay; results differ in rounding; ``put_back`` comes before saving. Only for
    float32 on x86 processors, where it was measured. Cost: one copy of each weight, once.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return 0
    done: set[int] = set()
    for layer in module.modules():
        if not isinstance(layer, nn.Linear):
            continue
        weight = layer.weight
        is_large = weight.numel() * weight.element_size() >= LEAST_BYTES
        if is_large and weight.is_contiguous() and _is_served(weight):
            weight.data = weight.data.t().contiguous().t()
            done.add(id(weight))  # tied weights are one tensor
    return len(done)


@torch.no_grad()
def put_back(module: nn.Module) -> None:
    """Undo ``lay_out``: files hold weights row by row, and ``save_pretrained`` insists on it."""
    for weight in module.parameters():
        weight.data = weight.data.contiguous()


def _is_served(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


def weights_of(module: nn.Module) -> str:
    """In words: the precision of a module as its checkpoint has it, and how its weights lie.

    >>> weights_of(nn.Linear(8, 8))
    'float32 as the checkpoint has it'
    """
    dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
    turned = any(weight.dim() > 1 and not weight.is_contiguous() for weight in module.parameters())
    lies = ", large weights column by column" if turned else ""
    return f"{dtype} as the checkpoint has it{lies}"
