"""Drafters' specs as text: their names, and what is wrong with them before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwise.errors import DraftwiseError
from draftwise.nn.folder import place
from draftwise.registry import DRAFTERS

BUNDLED = ("zoo", "smollm2", "gemma3")
"""Targets whose drafters come along: each is a spec of all of them, ``smollm2:NAME`` of one."""


def name_and_spec(given: Any) -> tuple[str, Any]:
    """``NAME=SPEC``, or a name taken from the spec; a model is named by its class."""
    if not isinstance(given, (str, Path)):
        return type(given).__name__, given
    text = str(given)
    name, equals, spec = text.partition("=")
    if equals and ":" not in name and "," not in name:
        return name, spec
    if text.startswith("lm:"):
        return Path(text.removeprefix("lm:").partition(",")[0]).name, text
    return text.partition(":")[0], text


def check_spec(given: str) -> None:
    """Refuse what needs no model to be refused.

    Raises DraftwiseError for an empty spec, an unknown drafter, and a folder that is not there.
    """
    name, spec = name_and_spec(given)
    if not spec or not name:
        raise DraftwiseError(f"the drafter {given!r} names nothing; {_KINDS}")
    kind, _, rest = spec.partition(",")[0].partition(":")
    if kind == "lm":
        place(rest)
    elif kind not in BUNDLED and kind not in DRAFTERS:
        if Path(spec).is_dir():
            raise DraftwiseError(f"drafter {spec!r} is a folder: write lm:{spec}")
        raise DraftwiseError(f"unknown drafter {kind!r}; {_KINDS}")


_KINDS = f"the drafter names are: {', '.join([*DRAFTERS, *BUNDLED])}"
