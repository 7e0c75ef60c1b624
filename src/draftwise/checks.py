"""Validation of values: type, range and finiteness; errors name the parameter.

Values from users, files and requests pass these functions once, where they enter:
``engine.options``, and the constructors of policies, rules, rewards, feedbacks and drafters. The
functions raise ``BadValue`` and return the value as a plain Python object.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from draftwise.errors import BadValue, DraftwiseError, shown

LARGE = 1e6  # the largest scale of an option: its square, and a sum of many, stay finite
MANY = 100_000  # the largest number of rounds, tokens or tries in an option
_LARGEST_SEED = 2**128 - 1
_HEADS = "train an EAGLE head for this target (draftwise train eagle) and write eagle:FOLDER"
_RULES = "what it revealed of other stop rules was biased by selection; leave it out"
_PACKED = "name a checkpoint with such weights (torchao, bitsandbytes), or a .gguf file"
_WINDOW = "leave it out: a drafter reads the whole text, up to the positions of its model"
_RECURRENT = "take a model of attention, Mamba-2 or gated delta rules"
REMOVED: Mapping[str, str] = {
    "drafter medusa": _HEADS,
    "drafter mtp": _HEADS,
    "drafter dflash": _HEADS,
    "option window of drafter 'lm'": _WINDOW,
    "option sink of drafter 'lm'": _WINDOW,
    "reward goodput": "write throughput, or use the policy goodput",
    "drafter smollm2:layer": "write smollm2:eagle, whose tokens are accepted more often",
    "option rules of feedback 'prefix'": _RULES,
    "option rules of feedback 'free'": _RULES,
    "option --guide": "write --rule",
    "option --num-speculative-tokens": "write --plan-lengths",
    "option --assistant-model": "write --drafter lm:PATH",
    "option --prompt-lookup-min": "write --drafter lookup:prompt_lookup_min=N",
    "option --prompt-lookup-max": "write --drafter lookup:prompt_lookup_max=N",
    "option --adapt": "train the head on texts like yours (draftwise train eagle)",
    **{
        f"model type {name}": _RECURRENT
        for name in ("falcon_mamba", "jamba", "mamba", "minimax", "rwkv", "xlstm", "zamba")
    },
    "dtype int8": _PACKED,
    "dtype int4": _PACKED,
    "option --compile": "leave it out: it paid only after about 10,000 tokens",
}
"""What draftwise has no more, and what to do instead. Keys: ``KIND NAME`` of a name in the registry
or in a list of values, ``model type NAME``, ``option NAME of KIND 'NAME'`` of a spec's option,
``option --NAME``, and ``command NAME`` or ``command GROUP NAME``."""


_EXACT = 2**53  # the largest float that names one whole number only


def plain(value: Any) -> Any:
    """A scalar of numpy or torch, of no dimension, as a Python value; others unchanged."""
    is_scalar = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if is_scalar else value


def whole(
    name: str, value: Any, least: int | None = None, most: int | None = None, note: str = ""
) -> int:
    """An int from ``least`` to ``most``, also as 2.0; True is rejected. note: meaning of ``least``.

    >>> whole("top_k", 5.0, 0)
    5
    """
    found = plain(value)
    if isinstance(found, float) and found.is_integer() and abs(found) <= _EXACT:
        found = int(found)
    if isinstance(found, Integral) and not isinstance(found, bool):
        number = int(found)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    raise BadValue(name, value, f"a whole number{_range(least, most, note)}")


def number(
    name: str, value: Any, least: float | None = None, most: float | None = None, note: str = "",
    *, above: float | None = None,
) -> float:  # fmt: skip
    """A finite float from ``least`` to ``most``, or larger than ``above``; True is rejected.

    >>> number("top_p", 1, above=0, most=1)
    1.0
    """
    given = plain(value)
    if isinstance(given, Real) and not isinstance(given, bool):
        with suppress(OverflowError):
            found = float(given)
            fits = (least is None or found >= least) and (most is None or found <= most)
            if math.isfinite(found) and fits and (above is None or found > above):
                return found
    bounds = _range(least, most, note)
    if above is not None:
        bounds = f" above {above:g}" + ("" if most is None else f", at most {most:g}")
    raise BadValue(name, value, f"a finite number{bounds}")


def seed(name: str, value: Any) -> int:
    """A whole number of at most 128 bits: numpy takes minutes for one of 100,000 digits."""
    return whole(name, value, 0, _LARGEST_SEED)


def share(name: str, value: Any) -> float:
    """A number in (0, 1]."""
    return number(name, value, above=0, most=1)


def probability(name: str, value: Any) -> float:
    """A number in [0, 1]."""
    return number(name, value, 0, 1)


def scale(name: str, value: Any) -> float:
    """A positive number that may be squared and divided by: from 1e-6 to 1e6."""
    return number(name, value, 1 / LARGE, LARGE)


def flag(name: str, value: Any) -> bool:
    """True or False; 0 and 1 are neither."""
    found = plain(value)
    if isinstance(found, bool):
        return found
    raise BadValue(name, value, "True or False")


def string(name: str, value: Any, options: Collection[str] | None = None) -> str:
    """Text; with ``options``, one of these."""
    if isinstance(value, str) and (options is None or value in options):
        return value
    raise BadValue(name, value, "text" if options is None else f"one of {', '.join(options)}")


def strings(name: str, value: Any) -> tuple[str, ...]:
    """One text or a sequence of texts, none of them empty; None counts as an empty sequence."""
    found = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(found, (list, tuple)):
        raise BadValue(name, value, "text or a list of texts")
    for part in found:
        if not isinstance(part, str) or not part:
            raise BadValue(name, part, "text that is not empty")
    return tuple(found)


def wholes(
    name: str, value: Any, least: int | None = None, most: int | None = None, num: int | None = None
) -> tuple[int, ...]:
    """A list, tuple, range or array of ints from ``least`` to ``most``, at most ``num``."""
    parts = value.tolist() if hasattr(value, "tolist") else value
    is_list = isinstance(parts, Collection) and not isinstance(parts, (str, bytes, Mapping))
    if is_list and (num is None or len(parts) <= num):
        with suppress(BadValue):
            return tuple(whole(name, part, least, most) for part in parts)
    must = f"a list of whole numbers{_range(least, most, '')}"
    raise BadValue(name, value, must + ("" if num is None else f", no more than {num:,} of them"))


def function(name: str, value: Any) -> Any:
    """Something that can be called, or None."""
    if value is None or callable(value):
        return value
    raise BadValue(name, value, "a function")


def path(name: str, value: Any) -> Path:
    """The path of a file or folder, as text or a path object; a number is rejected."""
    if isinstance(value, (str, os.PathLike)) and str(value):
        return Path(os.path.expanduser(value))
    raise BadValue(name, value, "the path of a file")


def optional(check: Callable[..., Any], name: str, value: Any, *bounds: Any) -> Any:
    """The result of ``check`` for a value; None stays None."""
    return None if value is None else check(name, value, *bounds)


def comma_separated(text: str, kind: Callable[[str], Any], least: float, said: str) -> list[Any]:
    """Parse numbers such as ``"1,2,4"``; DraftwiseError(said) for invalid or too small ones."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise DraftwiseError(said) from error
    if min(found) < least:
        raise DraftwiseError(said)
    return found


def refuse_removed(what: str) -> None:
    """Raise DraftwiseError if ``what`` is a key of ``REMOVED``."""
    if what in REMOVED:
        raise DraftwiseError(f"{what} has been removed: {REMOVED[what]}")


def known(kind: str, name: Any, names: Collection[str], kinds: str = "") -> None:
    """Raise DraftwiseError, listing ``names``, for an unknown name. kinds: the plural of kind."""
    if name not in names:
        refuse_removed(f"{kind} {name}")
        said = f"unknown {kind} {shown(name)}; the {kinds or kind + 's'} are: {', '.join(names)}"
        raise DraftwiseError(said)


def _range(least: float | None, most: float | None, note: str) -> str:
    """The end of a sentence that begins "it must be a number"."""
    low = "" if least is None else _written(least) + (f" ({note})" if note else "")
    if most is None:
        return f", {low} or more" if low else ""
    return f" from {low} to {_written(most)}" if low else f", at most {_written(most)}"


def _written(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


@dataclass(frozen=True, slots=True)
class Option:
    """How a dataclass field is checked, and its option on the command line.

    help: empty = no option on the command line. flags: as typed; empty = ``--`` and the field's
    name. least, most: bounds that the command line checks. known: values for shell completion.
    kind: the type on the command line if it is not the field's; read: converts such a value to the
    field's.
    """

    help: str = ""
    flags: tuple[str, ...] = ()
    check: Callable[[str, Any], Any] | None = None
    panel: str | None = None
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    known: Collection[str] = ()
    envvar: str | None = None
    kind: Any = None
    read: Callable[[Any], Any] | None = None


def option(default: Any, help_: str = "", *flags: str, **more: Any) -> Any:
    """A field with an ``Option``; default: ``...`` = required, a callable makes the default."""
    made: dict[str, Any] = {"metadata": {"option": Option(help_, flags, **more)}}
    if callable(default):
        return field(default_factory=default, hash=False, **made)
    return field(default=MISSING if default is ... else default, **made)


def check_fields(self: Any) -> None:
    """Check all fields of a frozen dataclass, at the end of its construction; raises BadValue.

    None for a field that cannot be None stands for its default, as in transformers.
    """
    for one in fields(self):
        own = one.metadata.get("option")
        if own is None or own.check is None:
            continue
        value = getattr(self, one.name)
        try:
            found = own.check(one.name, value)
        except BadValue:
            if value is not None or (one.default is MISSING and one.default_factory is MISSING):
                raise
            found = one.default if one.default_factory is MISSING else one.default_factory()
        object.__setattr__(self, one.name, found)
