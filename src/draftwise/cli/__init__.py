"""The command line: one file per command, imported when its command runs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from draftwise import __version__, install
from draftwise.checks import refuse_removed
from draftwise.cli.failures import refusals as refusals
from draftwise.cli.failures import standing_streams
from draftwise.errors import DraftwiseError
from draftwise.install import LAB_COMMANDS, lab_part

COMMANDS: Mapping[str, str] = {
    "try": "Measure in a minute whether draftwise pays on a model and your prompts.",
    "generate": "Complete a prompt with speculative decoding.",
    "chat": "Chat with a model in the terminal; tokens are coloured by drafter.",
    "demo": (
        "Compare plain decoding and draftwise on the same prompts; tokens are coloured by drafter."
    ),
    "serve": "Serve an OpenAI-compatible API at http://127.0.0.1:8000/v1, with a live page at /.",
    "models": (
        "List models, drafters and policies; with --target or --drafter, load and check these."
    ),
    "check": "Compare answers with and without drafts in this dtype and on this device.",
    "bench": "Time presets and fixed plans against plain decoding, on your prompts.",
    "doctor": "Print what is installed, what will be used, and what is missing.",
    "datastore": "Build a datastore to draft from.",
}
"""Name -> help line."""
_APPS = {"datastore": "datastore:app", "try": "bench:trial"}
"""Modules of commands with subcommands; any other command is a function in the file of its name."""


def find_command(name: str) -> Any:
    """The command's function or app; DraftwiseError for a lab command without the lab."""
    if name in LAB_COMMANDS:
        return lab_part(name, f"draftwise {name}")
    module, _, attribute = _APPS.get(name, f"{name}:{name}").partition(":")
    return getattr(importlib.import_module(f"draftwise.cli.{module}"), attribute)


def tidied(command: Any) -> Any:
    """Set up a command, or a group with its commands: ``-h``, and refusals of what was removed."""
    command.context_settings.setdefault("help_option_names", ["--help", "-h"])
    command.get_help_option = functools.partial(_help_option, command.get_help_option)
    for read in {"parse_args", "resolve_command"} & set(dir(command)):
        setattr(command, read, functools.partial(_refusing_removed, getattr(command, read)))
    for inner in getattr(command, "commands", {}).values():
        tidied(inner)
    return command


def _refusing_removed(read: Callable[..., Any], ctx: Any, args: list[str]) -> Any:
    """Call ``read``; if it knows an option or command no more, say what to do instead."""
    try:
        return read(ctx, args)
    except Exception as error:
        option = getattr(error, "option_name", None)
        with refusals():
            what = f"option {option}" if option else f"command {ctx.info_name} {' '.join(args[:1])}"
            refuse_removed(what)
        raise


def _help_option(make: Callable[[Any], Any], ctx: Any) -> Any:
    option = make(ctx)
    option.metavar = ""
    return option


_STYLE: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": "markdown"}


class Commands(TyperGroup):
    is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *(LAB_COMMANDS if install.has_lab() else ())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; while the list is printed, a placeholder with its help line."""
        line = COMMANDS.get(cmd_name) or LAB_COMMANDS.get(cmd_name)
        if line is None:
            with refusals():
                refuse_removed(f"command {cmd_name}")
                if close := get_close_matches(cmd_name, self.list_commands(ctx), 1):
                    raise DraftwiseError(f"no command {cmd_name!r}: did you mean {close[0]}?")
            return None
        if self.is_listing:
            return TyperCommand(cmd_name, help=line)
        with refusals():
            found = find_command(cmd_name)
        if isinstance(found, typer.Typer):
            command: Any = get_group(found)
        else:
            alone = typer.Typer(add_completion=False, **_STYLE)
            alone.command()(found)
            command = get_command(alone)
        command.name = cmd_name
        return tidied(command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the list without importing the commands."""
        self.is_listing = True
        tidied(self)
        super().format_help(ctx, formatter)


_NAMES = {"help_option_names": ["--help", "-h"]}
app = typer.Typer(
    name="draftwise", cls=Commands, no_args_is_help=True, context_settings=_NAMES, **_STYLE
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"draftwise {__version__}")
        raise typer.Exit


@app.callback()
def draftwise(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_say_version, is_eager=True, metavar="",
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:  # fmt: skip
    """Lossless speculative decoding for Hugging Face causal LMs, tuned online."""


def main() -> None:
    with refusals(), standing_streams():
        app()
