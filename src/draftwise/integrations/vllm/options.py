"""The options of ``--additional-config '{"draftwise": {...}}'``; all are optional."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from draftwise.errors import DraftwiseError, shown

MAX_DRAFT = 128
"""The longest draft that vLLM's rejection sampler takes, in tokens."""
RETRIEVAL, MODEL = "retrieval", "model"
DRAFTERS = (RETRIEVAL, MODEL)
"""Names of drafters: search in texts, and the drafter of the server's speculative config."""


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Options of one vLLM server.

    drafters: enabled drafters; ``model`` needs a speculative config. max_draft: most tokens of a
        draft, 1 to 128; a speculative config's ``num_speculative_tokens`` is a further limit.
        history_tokens: recent tokens of finished answers that retrieval searches; 0: only a
        request's own text. state: state file; ``auto`` = in vLLM's cache folder, by device, model
        and settings; None = no file.
    """

    drafters: tuple[str, ...] = DRAFTERS
    max_draft: int = 16
    history_tokens: int = 1 << 18
    state: str | None = "auto"


def parse_options(given: Any) -> PluginOptions:
    """Parse the value of ``additional_config["draftwise"]``; None = all defaults.

    Raises DraftwiseError for an unknown name, listing the valid ones, or a value of the wrong type.

    >>> parse_options({"max_draft": 8}).max_draft
    8
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise DraftwiseError(
            f"additional_config['draftwise'] is {given!r}: write an object, such as "
            '{"draftwise": {"max_draft": 8}}'
        )
    valid = [field.name for field in fields(PluginOptions)]
    for name in given:
        if name not in valid:
            raise DraftwiseError(
                f"additional_config['draftwise'] has no option {name!r}; its options are: "
                f"{', '.join(valid)}"
            )
    values = dict(given)
    if "drafters" in given:
        values["drafters"] = drafters_of(given["drafters"])
    for name, least, most in (("max_draft", 1, MAX_DRAFT), ("history_tokens", 0, 1 << 30)):
        if name in given:
            values[name] = whole_number(name, given[name], least, most)
    if not isinstance(values.get("state", ""), str | None) or values.get("state") == "":
        raise DraftwiseError(f"state is {values['state']!r}: write a file's path, 'auto' or null")
    return PluginOptions(**values)


def drafters_of(given: Any) -> tuple[str, ...]:
    """Names of drafters, as a list or separated by commas; DraftwiseError for unknown ones.

    >>> drafters_of("model")
    ('model',)
    """
    names = given.replace(" ", "").split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names or any(n not in DRAFTERS for n in names):
        raise DraftwiseError(
            f"drafters is {shown(given)}: write a list of at least one of {', '.join(DRAFTERS)}"
        )
    return tuple(dict.fromkeys(names))


def whole_number(name: str, given: Any, least: int, most: int) -> int:
    """An integer within its bounds; DraftwiseError otherwise."""
    is_whole = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_whole or given != given // 1 or not least <= given <= most:
        raise DraftwiseError(
            f"{name} is {shown(given)}: it must be a whole number, {least} to {most}"
        )
    return int(given)
