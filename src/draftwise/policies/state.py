"""Saves and restores policy state as plain JSON, so that a resumed run makes the same choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from draftwise.checks import flag, number, whole

Fields = Mapping[str, str] | Sequence[str]
"""Maps field names of a state to attributes; or lists field names, which are the attributes' names
with or without a leading underscore."""

_MOST = 1e15  # upper bound of every sum of values in [0, 1]


class Kept:
    """Saves and restores the attributes in ``KEPT``."""

    KEPT: ClassVar[Fields]

    def state(self) -> dict[str, Any]:
        return dump(self, self.KEPT)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; ValueError, and no change, if it does not fit."""
        load(self, self.KEPT, state)

    def check_memory(self) -> None:
        """Raise ValueError for a state that no run can produce."""

    def forget_what_follows(self) -> None:
        """Drop values derived from the replaced state."""


def dump(owner: object, fields: Fields) -> dict[str, Any]:
    return {name: as_json(getattr(owner, own)) for name, own in _pairs(owner, fields).items()}


def load(owner: object, fields: Fields, state: Mapping[str, Any]) -> None:
    """Restore the fields of ``owner`` from a result of ``dump``: all of them, or none on error.

    Arrays keep their type and shape, numbers their type. Then ``owner`` validates the state
    (``check_memory``). Errors: ValueError.
    """
    pairs = _pairs(owner, fields)
    if not isinstance(state, Mapping) or set(state) != set(pairs):
        holds = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"this state holds {holds}, but {type(owner).__name__} needs {sorted(pairs)}: "
            "load it into a policy of the same name and options"
        )
    held = {own: getattr(owner, own) for own in pairs.values()}
    before = {own: as_json(old) if _is_written_to(old) else old for own, old in held.items()}
    try:
        for name, own in pairs.items():
            present, value = getattr(owner, own), state[name]
            _set(owner, own, value if _is_written_to(present) else _like(name, present, value))
        if isinstance(owner, Kept):
            owner.forget_what_follows()
            owner.check_memory()
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        for own, old in before.items():
            _set(owner, own, old)
        raise error if isinstance(error, ValueError) else ValueError(str(error)) from error


def in_range(name: str, values: Any, least: Any, most: Any = _MOST) -> None:
    """Raise ValueError for a number, or an array, outside the range that a run can produce."""
    values = np.asarray(values, dtype=np.float64)
    if not (np.all(values >= least) and np.all(values <= most)):
        raise ValueError(f"{name} is out of range: the file is damaged")


def _pairs(owner: object, fields: Fields) -> Mapping[str, str]:
    if isinstance(fields, Mapping):
        return fields
    return {name: name if hasattr(owner, name) else f"_{name}" for name in fields}


def _is_written_to(present: Any) -> bool:
    return hasattr(present, "load_state") or isinstance(present, np.random.Generator)


def _set(owner: object, own: str, value: Any) -> None:
    present = getattr(owner, own)
    if hasattr(present, "load_state"):
        present.load_state(value)
    elif isinstance(present, np.random.Generator):
        present.bit_generator.state = value
    else:
        setattr(owner, own, value)


def as_json(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, np.random.Generator):
        return as_json(value.bit_generator.state)
    if hasattr(value, "state"):
        return value.state()
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value


def _like(name: str, present: Any, value: Any) -> Any:
    """``value`` converted to the type of ``present``; ValueError if it is damaged."""
    if isinstance(present, np.ndarray):
        if np.shape(_checked(name, present.dtype.type(0), value)) != present.shape:
            raise ValueError(
                f"{name} has shape {np.shape(value)} in the state and {present.shape} here: the "
                "number of plans differs, or the file is damaged"
            )
        return np.array(value, dtype=present.dtype)
    return _checked(name, present, value)


def _checked(name: str, present: Any, value: Any) -> Any:
    """``value``, if its numbers have the type of ``present``, also in nested lists."""
    if isinstance(value, list):
        parts = [_checked(name, present, part) for part in value]
        if len({np.shape(part) for part in parts}) > 1:
            raise ValueError(f"the rows of {name} are not equally long: the file is damaged")
        return parts
    if isinstance(present, (bool, np.bool_)):
        return flag(name, value)
    if isinstance(present, (int, np.integer)):
        return whole(name, value, -int(_MOST), int(_MOST))
    if isinstance(present, (float, np.floating)):
        return number(name, value, -_MOST, _MOST)
    return _finite(name, value)


def _finite(name: str, value: Any) -> Any:
    """Check a value of unknown type: any plain JSON with finite numbers."""
    if isinstance(value, float):
        return number(name, value)
    for part in value.values() if isinstance(value, Mapping) else ():
        _finite(name, part)
    return as_json(value)
