"""Notices that a module has changed since something was derived from it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_SAMPLE = 16  # values of a tensor that its mark contains
_TABLES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: parameters, buffers, submodules and hooks."""
_OF_TEXT = ("_token_id", "use_cache", "_name_or_path")
"""Ends of the names of settings that no forward reads."""


class Structure:
    """The parts of a module that a ``CausalModel`` is built from: all but the weights' values.

    view: the copy of the module that is called instead (``nn.hybrid.view``), or the module itself.
    A copy also depends on the identity and the hooks of each submodule.
    """

    def __init__(self, module: Any, view: Any) -> None:
        self._is_copied = view is not module
        self._kept = copy.deepcopy(self._of(module))

    def fits(self, module: Any) -> bool:
        return self._of(module) == self._kept

    def _of(self, module: Any) -> tuple[Any, ...]:
        given = vars(module.config).items()
        config = {name: own for name, own in given if not name.endswith(_OF_TEXT)}
        head = module.get_output_embeddings()
        logits = getattr(getattr(head, "weight", None), "shape", None)
        layers: Iterable[nn.Module] = module.modules() if self._is_copied else ()
        tables = ("_forward_hooks", "_forward_pre_hooks")
        own = [(id(x), *(len(x.__dict__[name]) for name in tables)) for x in layers]
        return config, module.dtype, module.device, logits, own


def weights_mark(module: Any) -> tuple[Any, ...] | None:
    """A value that changes with whatever keys and values depend on; None = it cannot be known.

    Covers training steps, loaded, moved and replaced weights, adapters (switched, disabled, merged,
    scaled) and the mode. Of a write through ``Tensor.data``, which leaves no trace, it notices one
    that reaches any of 16 values of a tensor: an optimizer's step, a copy of all weights, but not
    one row of an embedding.
    Cost: 5 us a tensor.
    """
    state: list[Any] = [_plain(vars(module.config))]
    tensors: list[Tensor] = []
    for layer in module.modules():
        own = layer.__dict__
        state += [(name, _plain(own[name])) for name in own.keys() - _TABLES]
        for table in (own["_parameters"], own["_buffers"]):
            tensors += [tensor for tensor in table.values() if tensor is not None]
    try:
        state += [(id(own), own._version, own.data_ptr()) for own in tensors]
        values = [_sample(own) for own in tensors if own.numel()]
    except (RuntimeError, NotImplementedError, TypeError):  # no plain tensors: offloaded, quantised
        return None
    by_device: dict[torch.device, list[Tensor]] = {}
    for value in values:
        by_device.setdefault(value.device, []).append(value)
    return *state, *(torch.cat(own).cpu().numpy().tobytes() for own in by_device.values())


def _sample(tensor: Tensor) -> Tensor:
    num = min(_SAMPLE, tensor.numel())
    return tensor.detach().as_strided((num,), (tensor.numel() // num,)).double()


def _plain(value: Any) -> Any:
    """Numbers and strings in nested containers; None for all else."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return tuple((str(name), _plain(own)) for name, own in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return None
