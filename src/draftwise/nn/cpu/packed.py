"""Weights in eight or four bits on CPUs: forwards read a quarter or an eighth of the bytes.

A quantised model differs from its checkpoint: with drafts or without, answers follow exactly the
distribution of the quantised model. A checkpoint from 4-bit GGUF (Q4_0, Q4_1) has the same grid, so
four bits change its weights only by the rounding of scales.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from draftwise.types import DraftwiseError

GROUP = 32  # weights of a row that share a scale and an offset in four bits: GGUF's blocks


class Packed(nn.Module):
    """A quantised linear layer [out, in] without bias, which multiplies in bfloat16."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape

    def forward(self, states: Tensor) -> Tensor:
        flat = states.reshape(-1, self.in_features).to(torch.bfloat16).contiguous()
        found = self.product(flat, self.get_buffer("bits"), self.get_buffer("scales"))
        return found.view(*states.shape[:-1], self.out_features)

    def product(self, flat: Tensor, bits: Tensor, scales: Tensor) -> Tensor:
        """[n, out] of [n, in]."""
        raise NotImplementedError


class PackedInt8(Packed):
    """int8 weights with one symmetric scale per row."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        scale = (weight.abs().amax(-1) / 127).clamp(min=1e-12)
        self.register_buffer("bits", (weight / scale[:, None]).round().to(torch.int8).contiguous())
        self.register_buffer("scales", scale.to(torch.bfloat16))

    def product(self, flat: Tensor, bits: Tensor, scales: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(flat, bits, scales)


class PackedInt4(Packed):
    """A scale and an offset for every ``GROUP`` weights of a row."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        bits, scales, middles = four_bits(weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(bits, 1)
        both = torch.stack((scales, middles), dim=-1).transpose(0, 1)
        self.register_buffer("bits", packed)
        self.register_buffer("scales", both.contiguous().to(torch.bfloat16))

    def product(self, flat: Tensor, bits: Tensor, scales: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, bits, GROUP, scales)
        return found


PRECISIONS: dict[str, Callable[[Tensor], nn.Module]] = {"int8": PackedInt8, "int4": PackedInt4}


def four_bits(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise [out, in] to numbers 0 to 15 [out, in], scales and middles [out, in / GROUP].

    A weight is (number - 8) * scale + middle; the least and the largest of a group are exact.
    """
    blocks = weight.float().view(len(weight), -1, GROUP)
    least, largest = blocks.amin(-1), blocks.amax(-1)
    scale = ((largest - least) / 15).clamp(min=1e-12)
    bits = ((blocks - least[..., None]) / scale[..., None]).round().clamp(0, 15)
    return bits.to(torch.int32).view(weight.shape), scale, least + 8 * scale


@torch.no_grad()
def pack(module: nn.Module, precision: str) -> None:
    """Replace a CPU model's linear layers by packed ones; convert the rest to bfloat16.

    Layers with a bias, or whose width is no multiple of ``GROUP``, stay linear. Errors:
    DraftwiseError for a model on another device.
    """
    if any(weight.device.type != "cpu" for weight in module.parameters()):
        raise DraftwiseError(f"{precision} weights are served on CPUs: leave out --device")
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.Linear) or layer.bias is not None:
                continue
            if layer.in_features % GROUP == 0:
                setattr(parent, name, PRECISIONS[precision](layer.weight.detach().contiguous()))
    for weight in module.parameters():
        weight.data = weight.data.to(torch.bfloat16)
