"""Names and options that draftwise had: each is refused with one sentence that says what to do."""

from __future__ import annotations

import pytest

from cli.conftest import Run, run_command
from draftwise import checks, registry
from draftwise.checks import REMOVED
from draftwise.types import DraftwiseError

TABLES = [key.split() for key in REMOVED if key.split()[0] in registry.TABLES and ":" not in key]


@pytest.mark.parametrize("name", [name for kind, name in TABLES if kind == "drafter"])
def test_drafters(generate: Run, name: str) -> None:
    for spec in (name, f"{name}:path", f"mine={name}:path,depth=2"):
        refusal = generate("Hello", "--drafter", spec).refusal
        assert refusal == f"drafter {name} has been removed: {REMOVED[f'drafter {name}']}\n"


@pytest.mark.parametrize(("kind", "name"), TABLES)
def test_names_in_the_registry(kind: str, name: str) -> None:
    with pytest.raises(DraftwiseError, match=f"^{kind} {name} has been removed: "):
        registry.build(kind, name, {})


@pytest.mark.parametrize("what", ["option --compile", "dtype int8", "dtype int4"])
def test_options_of_models(generate: Run, what: str) -> None:
    kind, name = what.split()
    given = [name] if kind == "option" else [f"--{kind}", name]
    assert generate("Hello", *given).refusal == f"{what} has been removed: {REMOVED[what]}\n"


def test_no_name_is_both_there_and_removed() -> None:
    assert not [(kind, name) for kind, name in TABLES if name in registry.TABLES[kind]]


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("option --gone", ["generate", "Hello", "--gone"]),
        ("option --gone", ["train", "head", "--gone", "5"]),
        ("command gone", ["gone", "--target", "zoo"]),
        ("command train gone", ["train", "gone", "--out", "folder"]),
        ("option gone of policy 'ucb1'", ["generate", "Hello", "--policy", "ucb1:gone=5"]),
        ("option gone of drafter 'lookup'", ["generate", "Hello", "--drafter", "lookup:gone=5"]),
    ],
)
def test_options_and_commands(
    what: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "REMOVED", {what: "use it no more"})
    assert run_command(*arguments).refusal == f"{what} has been removed: use it no more\n"
    monkeypatch.setattr(checks, "REMOVED", {})
    ran = run_command(*arguments)
    assert ran.code == 2
    assert "removed" not in ran.err
