"""The table of commands agrees with each command's own help."""

from __future__ import annotations

import pytest
import typer

from cli.conftest import run_command
from draftwise.cli import COMMANDS, find_command
from draftwise.install import LAB_COMMANDS


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


PARTS = ["datastore build", "train drafter", "train eagle", "train head"]


@pytest.mark.parametrize("line", [*COMMANDS, *LAB_COMMANDS, *PARTS])
def test_help_is_not_cut_at_80_columns(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run_command(*line.split(), "--help")
    assert ran.code == 0
    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_the_list_and_what_is_not_in_it() -> None:
    ran = run_command("--help")
    assert all(name in ran.out for name in COMMANDS)
    assert run_command("-h").out == ran.out
    assert run_command("nonesuch").code == 2
    typo = run_command("genrate")
    assert (typo.code, typo.err) == (2, "no command 'genrate': did you mean generate?\n")
