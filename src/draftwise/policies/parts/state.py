"""A policy's memory as plain JSON and back, so that a stopped run goes on with the same choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np


class Kept:
    """Whose memory is the attributes ``KEPT``."""

    KEPT: ClassVar[tuple[str, ...]]

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, self.KEPT)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, self.KEPT, state)
        self.forget_what_follows()

    def forget_what_follows(self) -> None:
        """Drop what was computed from another memory; most have nothing of the kind."""


def dump(owner: object, names: Sequence[str]) -> dict[str, Any]:
    """The attributes ``names`` of ``owner`` as plain JSON values, under those names."""
    return {name: _plain(getattr(owner, name)) for name in names}


def load(owner: object, names: Sequence[str], state: Mapping[str, Any]) -> None:
    """Set the attributes ``names`` of ``owner`` from what ``dump`` gave; all of them or none.

    Arrays keep their type and must keep their shape. Errors: ValueError.
    """
    if set(state) != set(names):
        raise ValueError(
            f"this state holds {sorted(state)}, but {type(owner).__name__} needs {sorted(names)}: "
            "load it into a policy of the same name and options"
        )
    parts = [name for name in names if hasattr(getattr(owner, name), "load_state")]
    own = [name for name in names if name not in parts]
    ready = {name: _like(name, getattr(owner, name), state[name]) for name in own}
    for name in parts:  # first, as they may still refuse
        getattr(owner, name).load_state(state[name])
    for name, value in ready.items():
        if isinstance(getattr(owner, name), np.random.Generator):
            getattr(owner, name).bit_generator.state = value
        else:
            setattr(owner, name, value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.random.Generator):
        return _plain(value.bit_generator.state)
    if hasattr(value, "state"):
        return value.state()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _like(name: str, present: Any, value: Any) -> Any:
    """``value`` in the type that the attribute has at present; ValueError if it is damaged."""
    _refuse_damaged(name.lstrip("_"), value)
    if isinstance(present, np.ndarray):
        array = np.array(value, dtype=present.dtype)
        if array.shape != present.shape:
            raise ValueError(
                f"{name.lstrip('_')} has shape {array.shape} in the state and {present.shape} "
                "here: the number of plans differs"
            )
        return array
    return _plain(value)


def _refuse_damaged(name: str, value: Any) -> None:
    """A number that is none, or rows of one table that are not equally long."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} has the value {value}: the file is damaged")
    parts = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(parts, list):
        for part in parts:
            _refuse_damaged(name, part)
    if isinstance(value, Mapping):
        sizes = {len(part) for part in parts if isinstance(part, list)}
        if len(sizes) > 1:
            raise ValueError(
                f"the rows of {name} have {sorted(sizes)} entries: the file is damaged"
            )
