"""The table of commands agrees with each command's own help."""

from __future__ import annotations

import pytest
import typer

from cli.conftest import run_command
from draftwise.cli import COMMANDS, find_command


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_is_the_commands_own_and_begins_with_what_is_common(name: str) -> None:
    found = find_command(name)
    ran = run_command(name, "-h")
    assert ran.code == 0
    assert "<bool>" not in ran.out
    if not isinstance(found, typer.Typer):
        assert (found.__doc__ or "").split("\n")[0] == COMMANDS[name]
    if name in {"generate", "chat", "serve"}:
        assert "--target" in ran.out.split("─ Options ─")[1].split("─ ")[0]
    if name == "generate":
        assert "adanormalhedge" not in ran.out


def test_the_list_and_what_is_not_in_it() -> None:
    ran = run_command("--help")
    assert all(name in ran.out for name in COMMANDS)
    assert run_command("-h").out == ran.out
    assert run_command("nonesuch").code == 2
