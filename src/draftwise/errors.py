"""The errors of draftwise, in a module that imports nothing, so that commands start fast."""

from __future__ import annotations

from typing import Any


class DraftwiseError(Exception):
    """An error whose text says what is wrong and what to do; commands print only this text."""


class BadValue(DraftwiseError, ValueError):
    """A parameter whose value has the wrong type or is outside its range.

    name: the parameter's name in Python; value: the rejected value; must: what it must be.
    Commands and the server replace the name with that of their option.
    """

    def __init__(self, name: str, value: Any, must: str) -> None:
        super().__init__(f"{name} is {shown(value)}: it must be {must}")
        self.name, self.value, self.must = name, value, must

    def __reduce__(self) -> tuple[Any, ...]:
        return BadValue, (self.name, self.value, self.must)


class UnknownOption(DraftwiseError, TypeError):
    """A keyword that a method does not have."""


def shown(value: Any) -> str:
    """Format a value for a message, in at most 60 characters.

    >>> shown("5"), shown(None), shown(10**5000)
    ("'5'", 'None', 'a very large int')
    """
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python does not format an int of more than 4,300 digits
        return f"a very large {type(value).__name__}"
    except Exception:
        return f"of the type {type(value).__name__}"
    return text if len(text) <= 60 else text[:59] + "…"
