"""What all commands share: groups of options, ``--quiet``, and how a command ends."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from draftwise.checks import Option
from draftwise.cli.failures import VOICE, refusals, refused_values
from draftwise.errors import BadValue, DraftwiseError, shown

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results, warnings and errors only.")
]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function as a command: a parameter that is a dataclass becomes one option for each field.

    A field is an option by its ``checks.Option``, or as typer annotates it; a field that is a
    dataclass gives its own fields, and one option may be a field of several. A default of such a
    parameter is an instance, whose values are the options' defaults. Errors end the command as
    ``refusals`` says.
    """
    hints = get_type_hints(function, include_extras=True)
    options: dict[str, inspect.Parameter] = {}
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(group := hints[name]):
            assert isinstance(group, type)
            groups[name] = group
            defaults = group() if parameter.default is parameter.empty else parameter.default
            options = {**options, **_options_of(group, defaults), **options}
        else:
            options[name] = _option(name, hints[name], parameter.default)
    options["quiet"] = _option("quiet", Quiet, False)

    @functools.wraps(function)
    @refusals()
    def run(quiet: bool = False, **given: Any) -> None:
        VOICE.notes = VOICE.loads = not quiet
        with refused_values():
            made = {name: _made(group, given) for name, group in groups.items()}
        own = {name: given[name] for name in hints if name in given}
        function(**own, **made)

    run.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options.values()}
    return run


@contextmanager
def option_names(group: type[Any] | None = None) -> Iterator[None]:
    """Around checks of values: an error names the option as it is typed; group: of its fields."""
    try:
        yield
    except BadValue as error:
        named = [_name(one) for one in (fields(group) if group else ()) if one.name == error.name]
        option = "--" + (*named, error.name)[0].replace("_", "-")
        raise DraftwiseError(f"{option} {shown(error.value)}: it must be {error.must}") from error


def annotated(group: type[Any], name: str) -> Any:
    """What typer is told of a field, for commands that have that option alone."""
    return _info(next(one for one in fields(group) if one.name == name))


def _made(group: type[Any], given: Mapping[str, Any]) -> Any:
    """The group from what was typed; raises DraftwiseError that names the option."""
    values = {}
    for one in fields(group):
        if is_dataclass(nested := _nested(one)):
            values[one.name] = _made(nested, given)  # type: ignore[arg-type]
            continue
        own = one.metadata.get("option")
        if own is None or own.help:
            value = given[_name(one)]
            values[one.name] = own.read(value) if own is not None and own.read else value
    with option_names(group):
        return group(**values)


def _options_of(group: type[Any], defaults: Any) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    found: dict[str, inspect.Parameter] = {}
    for one in fields(group):
        default, own = getattr(defaults, one.name), one.metadata.get("option")
        if is_dataclass(nested := _nested(one)):
            found |= _options_of(nested, default)  # type: ignore[arg-type]
        elif own is None:
            found[one.name] = _option(one.name, hints[one.name], default)
        elif own.help:
            kind = hints[one.name] if own.kind is None else own.kind
            shown = None if kind in (list[str] | None, str | None) else default
            found[_name(one)] = _option(_name(one), Annotated[kind, _info(one)], shown)
    return found


def _nested(one: Field[Any]) -> Any:
    return None if one.default_factory is MISSING else one.default_factory


def _name(one: Field[Any]) -> str:
    """The parameter's name: that of its first flag."""
    own = one.metadata.get("option")
    if own is None or not own.flags:
        return one.name
    return str(own.flags[0]).lstrip("-").partition("/")[0].replace("-", "_")


def _info(one: Field[Any]) -> Any:
    own: Option = one.metadata["option"]
    known = list(own.known)
    return typer.Option(
        *(own.flags or ("--" + one.name.replace("_", "-"),)),
        help=own.help,
        rich_help_panel=own.panel,
        metavar=own.metavar,
        envvar=own.envvar,
        autocompletion=(lambda incomplete: [n for n in known if n.startswith(incomplete)])
        if known
        else None,
    )


def _option(name: str, hint: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=hint)
