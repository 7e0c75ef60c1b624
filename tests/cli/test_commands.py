"""The table of commands agrees with each command's own help."""

from __future__ import annotations

import pytest
import typer

from cli.conftest import run_command
from draftwise.cli import COMMANDS, find_command


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_line_is_the_commands_own(name: str) -> None:
    found = find_command(name)
    ran = run_command(name, "--help")
    assert ran.code == 0
    if not isinstance(found, typer.Typer):
        assert (found.__doc__ or "").split("\n")[0] == COMMANDS[name]


def test_the_list_and_what_is_not_in_it() -> None:
    ran = run_command("--help")
    assert all(name in ran.out for name in COMMANDS)
    assert run_command("nonesuch").code == 2


@pytest.mark.parametrize("line", [[], *([name] for name in COMMANDS)])
def test_help_begins_with_what_is_common(line: list[str]) -> None:
    ran = run_command(*line, "-h")
    assert ran.code == 0
    assert "<bool>" not in ran.out
    if line in (["generate"], ["chat"], ["serve"]):
        common = ran.out.split("─ Options ─")[1].split("─ ")[0]
        assert "--target" in common
    if line == ["generate"]:
        assert "adanormalhedge" not in ran.out
