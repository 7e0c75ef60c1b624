"""What all commands share: groups of options, ``--quiet``, and how a command ends."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from draftwise.cli.failures import VOICE, refusals

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.")
]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function as a command: a parameter that is a dataclass becomes one option for each field.

    A default of such a parameter is an instance, whose values are the options' defaults. Errors end
    the command as ``refusals`` says.
    """
    hints = get_type_hints(function, include_extras=True)
    options: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(group := hints[name]):
            assert isinstance(group, type)
            groups[name] = group
            defaults = group() if parameter.default is parameter.empty else parameter.default
            options += _options_of(group, defaults)
        else:
            options.append(_option(name, hints[name], parameter.default))
    options.append(_option("quiet", Quiet, False))

    @functools.wraps(function)
    @refusals()
    def run(quiet: bool = False, **given: Any) -> None:
        VOICE.notes = VOICE.loads = not quiet
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options_of(group: type[Any], defaults: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [_option(f.name, hints[f.name], getattr(defaults, f.name)) for f in fields(group)]


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=hint)
