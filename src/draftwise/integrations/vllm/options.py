"""What can be set: ``--additional-config '{"draftwise": {...}}'``; nothing has to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from draftwise.types import DraftwiseError

MAX_LENGTH = 128
"""The longest draft that vLLM's rejection sampler takes, in tokens."""


@dataclass(frozen=True, slots=True)
class Options:
    """How draftwise plays inside one vLLM server.

    drafters: specs of those that retrieve. max_length: of their drafts, in tokens; with a
        speculative config, its ``num_speculative_tokens`` counts instead. policy, feedback, reward:
        specs of the registry. state: file of what was learnt; ``auto`` = one a model, in vLLM's
        cache folder; None = nothing is kept. seed: of policies that draw.
    """

    drafters: tuple[str, ...] = ("lookup", "suffix")
    max_length: int = 16
    policy: str = "goodput"
    feedback: str = "free"
    reward: str = "length"
    state: str | None = "auto"
    seed: int = 0


def parse_options(given: Any) -> Options:
    """The value of ``additional_config["draftwise"]`` (None = all defaults) as options.

    Raises DraftwiseError for an unknown name, listing the valid ones, or a value of another kind.

    >>> parse_options({"policy": "ucbspec"}).policy
    'ucbspec'
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise DraftwiseError(
            f"additional_config['draftwise'] is {given!r}: write an object, such as "
            '{"draftwise": {"policy": "goodput"}}'
        )
    defaults = Options()
    valid = [field.name for field in fields(Options)]
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in valid:
            raise DraftwiseError(
                f"additional_config['draftwise'] has no option {name!r}; its options are: "
                f"{', '.join(valid)}"
            )
        values[name] = _checked(name, value, getattr(defaults, name))
    return Options(**values)


def _checked(name: str, value: Any, default: Any) -> Any:
    """A value of the default's kind and within its bounds."""
    if name == "drafters":
        if isinstance(value, str) or not all(isinstance(spec, str) for spec in value):
            raise DraftwiseError(f"drafters is {value!r}: write a list, such as ['lookup']")
        return tuple(value)
    if name == "state" and value is None:
        return None
    if type(value) is not type(default):
        raise DraftwiseError(f"{name} is {value!r}: it must be of type {type(default).__name__}")
    if name == "max_length" and not 1 <= value <= MAX_LENGTH:
        raise DraftwiseError(f"max_length is {value}: it must be 1 to {MAX_LENGTH} tokens")
    return value
