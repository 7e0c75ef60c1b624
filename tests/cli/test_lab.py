"""draftwise without the lab, and the lab's commands with it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from cli.conftest import run_command
from draftwise import install as LAB
from draftwise.cli import LAB_COMMANDS
from draftwise.install import GROUP as LAB_GROUP
from draftwise.install import LAB_HINT, find_part


@pytest.fixture
def _no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LAB, "find_part", lambda name: None)
    monkeypatch.setattr(LAB, "has_lab", lambda: False)


@pytest.mark.usefixtures("_no_lab")
@pytest.mark.parametrize(
    ("line", "what"),
    [
        *(((name,), f"draftwise {name}") for name in LAB_COMMANDS),
        (("models", "--check", "all"), "models --check"),
    ],
)
def test_without_the_lab_it_says_what_to_install(line: tuple[str, ...], what: str) -> None:
    assert f"{what} needs the lab: {LAB_HINT}" in run_command(*line).refusal


@pytest.mark.usefixtures("_no_lab")
def test_without_the_lab_the_list_leaves_its_commands_out() -> None:
    listed = run_command("--help").out
    assert "generate" in listed
    assert not [name for name in LAB_COMMANDS if f" {name} " in listed]
    assert run_command("nonesuch").code == 2


def test_the_lab_has_every_command_that_is_announced() -> None:
    names = {entry.name for entry in entry_points(group=LAB_GROUP)}
    assert set(LAB_COMMANDS) | {"models.check"} == names
    listed = run_command("--help").out
    assert all(f" {name} " in listed for name in LAB_COMMANDS)


@pytest.mark.parametrize("name", list(LAB_COMMANDS))
def test_each_line_is_the_commands_own(name: str) -> None:
    assert run_command(name, "--help").code == 0
    found = find_part(name)
    if callable(found) and not hasattr(found, "registered_commands"):
        assert (found.__doc__ or "").split("\n")[0] == LAB_COMMANDS[name]


def test_the_list_imports_neither_the_lab_nor_metadata() -> None:
    program = (
        "import sys\nfrom draftwise.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'draftwise_lab', 'importlib.metadata', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
