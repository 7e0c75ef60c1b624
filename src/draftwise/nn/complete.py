"""Loading with the library, and refusing what it would complete with random weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from draftwise.types import DraftwiseError

_MOST_SHOWN = 6
_RECOMPUTED = ("rotary_emb",)  # parts of names of tables that old checkpoints hold


def read_completely(auto: Any, source: str, name: str, **options: Any) -> Any:
    """``auto.from_pretrained(source, **options)``, if the checkpoint has all weights of the model.

    auto: a class such as ``AutoModelForCausalLM``. name: the model's name in errors. The library
    draws weights at random that are missing or of another shape, and drops those that it has no
    place for. Raises DraftwiseError that names them, except for dropped ones outside the model's
    layers, such as a vision tower or a value head, which the library reports itself.
    """
    module, found = auto.from_pretrained(
        source, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    if missing := found["missing_keys"]:
        raise DraftwiseError(
            f"{name} is incomplete: its checkpoint has no {listed(missing)}. Download it again, "
            "or check that config.json is this checkpoint's"
        )
    if mismatched := found["mismatched_keys"]:
        key, theirs, ours = min(mismatched)
        others = f" (and {len(mismatched) - 1} more)" if len(mismatched) > 1 else ""
        raise DraftwiseError(
            f"{name} does not fit its config.json: {key} has the shape {tuple(theirs)}, and the "
            f"config asks for {tuple(ours)}{others}"
        )
    if dropped := _misplaced(module, found):
        raise DraftwiseError(
            f"{name} does not fit its config.json: the model that it describes has no place for "
            f"{listed(dropped)}"
        )
    return module


def listed(names: Collection[str]) -> str:
    """The first names in order, and the number of the others."""
    shown = ", ".join(sorted(names)[:_MOST_SHOWN])
    return shown if len(names) <= _MOST_SHOWN else f"{shown} and {len(names) - _MOST_SHOWN} more"


def _misplaced(module: Any, found: Mapping[str, Any]) -> set[str]:
    """Dropped weights of layers that the model has, which therefore compute something else.

    A quantiser may drop what it has no use for, such as scales of a cache.
    """
    if getattr(module, "hf_quantizer", None) is not None:
        return set()
    places = dict(module.named_modules())
    groups = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
    inside = {
        key for key, own in places.items()
        if key not in {"", module.base_model_prefix} and not isinstance(own, groups)
    }  # fmt: skip
    return {
        key for key in found["unexpected_keys"]
        if _nearest(key, places) in inside and not any(part in key for part in _RECOMPUTED)
    }  # fmt: skip


def _nearest(key: str, places: Collection[str]) -> str:
    """The innermost module of the model that a weight's name lies in."""
    while key and key not in places:
        key = key.rpartition(".")[0]
    return key
