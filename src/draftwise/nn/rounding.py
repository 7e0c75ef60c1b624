"""Weights that round their inputs: where forwards of different widths need not agree."""

from __future__ import annotations

from typing import Any

_MODULES = ("Linear8bitLt",)
"""Of bitsandbytes: LLM.int8() quantises activations."""
_TENSORS = ("LinearActivationQuantizedTensor",)
"""Of torchao before 0.14; later ones carry ``act_quant_kwargs``."""


def rounding_layer(module: Any) -> str | None:
    """The name of a layer that quantises its activations as it computes; None where none does.

    Such a layer rounds to 8 bits what differs by the last bit of a float between a forward over one
    token and one over several, so greedy answers can part from plain decoding's at a near tie. That
    is so of transformers itself with and without a cache (measured in docs/log.md).
    """
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        marks = {type(layer).__name__, type(weight).__name__}
        if marks & {*_MODULES, *_TENSORS} or getattr(weight, "act_quant_kwargs", None) is not None:
            return name or type(layer).__name__
    return None
