"""Install lines in the docs agree with ``draftwise.install``, and the names in them exist."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from draftwise import install

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ANY_LINE = re.compile(r"\bpip3? +install\b[^`\n#&|]*")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``benchmarks/tables.py``, which rewrites the pages."""
    monkeypatch.syspath_prepend(str(ROOT / "packages/lab/benchmarks"))
    return importlib.import_module("tables")


def pages() -> list[Path]:
    named = (
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "SECURITY.md",
        "packages/zoo/README.md",
    )
    return [*(ROOT / name for name in named), *sorted((ROOT / "docs").rglob("*.md"))]


def names_draftwise(line: str) -> bool:
    """Whether a ``pip install`` line installs draftwise or a local folder, however it is quoted."""
    try:
        words = shlex.split(line)
    except ValueError:  # an apostrophe in the sentence after the line
        words = line.split()
    return any(re.match(r"['\"]?(\.|draftwise)", word) for word in words)


def own_lines(text: str) -> list[str]:
    return [line.strip() for line in ANY_LINE.findall(text) if names_draftwise(line)]


def test_the_pages_install_as_the_one_constant_says(tables: ModuleType) -> None:
    """``make bench-docs`` would change no page, and recognises every install line there."""
    found = 0
    for page in pages():
        for line in own_lines(page.read_text("utf-8")):
            match = tables.INSTALL.match(line)
            assert match is not None, f"{page.name}: {line}: write {install.command('EXTRA')}"
            assert tables.installed(match[0]) == match[0], f"{page.name}: make bench-docs"
            found += 1
    assert found >= 8


@pytest.mark.parametrize(
    "line",
    [
        "pip install draftwise",
        'pip install "draftwise[serve]"',
        "pip install -U 'draftwise[serve]'",
        "pip3 install .",
        "pip install ./packages/zoo",
    ],
)
def test_another_spelling_is_found(line: str, tables: ModuleType) -> None:
    (found,) = own_lines(f"Type `{line}`.")
    match = tables.INSTALL.match(found)
    assert match is None or tables.installed(match[0]) != match[0]


def test_other_packages_are_nobodys_business() -> None:
    assert own_lines("`pip install openai`, `pip install torch --index-url URL`.") == []


def test_one_edit_moves_every_line(tables: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {page: page.read_text("utf-8") for page in tables.pages()}
    monkeypatch.setattr(install, "IS_PUBLISHED", True)
    assert install.command() == "pip install draftwise"
    assert install.hint("serve", "zoo") == "pip install 'draftwise[serve,zoo]'"
    after = {page: tables.installed(text) for page, text in before.items()}
    lines = [line for text in after.values() for line in own_lines(text)]
    assert lines
    for line in lines:
        named = re.match(r"pip install '?draftwise(?:\[([\w,]+)\])?", line)
        assert named is not None, line
        assert set((named[1] or "zoo").split(",")) <= EXTRAS.keys()
    monkeypatch.undo()
    assert {page: tables.installed(text) for page, text in after.items()} == before


def test_messages_take_their_line_from_there_and_name_extras_that_exist() -> None:
    named = set[str]()
    for file in SOURCES:
        if file.name == "install.py":
            continue
        text = file.read_text("utf-8")
        assert own_lines(text) == [], file
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in {"hint", "install.hint"}:
                named |= {ast.literal_eval(argument) for argument in call.args}
    assert {"bench", "gguf", "peft", "prompts", "serve", "vllm", "zoo"} <= named <= EXTRAS.keys()


def test_the_demo_installs_no_tools() -> None:
    """``make demo`` installs the package only; ``make test`` and ``make check`` add extras."""

    def given(target: str) -> list[str]:
        line = ["make", "--no-print-directory", "-n", "-B", target]
        env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        return re.findall(r" -e (\S+)$", done.stdout, re.MULTILINE)

    assert given("demo") == ["."]
    assert set(given("test")) == {".", "'.[test]'", "packages/lab"}
    assert set(given("check")) == {".", "'.[test]'", "'.[dev]'", "packages/lab"}


def test_the_tested_versions_are_in_the_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    ranges = [Requirement(line) for line in sum(EXTRAS.values(), PROJECT["dependencies"])]
    own = [each for each in ranges if not each.name.startswith("draftwise")]
    missing = {each.name for each in own} - {"openai", "pytest"} - tested.keys()
    assert {name for name in missing if name.replace("-", "_") not in tested} == set()
    for each in own:
        version = tested.get(each.name, tested.get(each.name.replace("-", "_")))
        assert version is not None
        assert Version(version) in each.specifier, each


def test_each_python_of_the_metadata_is_one_that_ci_runs_or_lies_between() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (matrix,) = re.findall(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    run = [Version(each) for each in re.findall(r'"([\d.]+)"', matrix)]
    for file in ("pyproject.toml", "packages/zoo/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text("utf-8"))["project"]
        said = re.findall(r":: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
        assert [min(run), max(run)] == [Version(said[0]), Version(said[-1])]
        assert project["requires-python"] == f">={said[0]}"
        assert project["authors"]
        assert project["keywords"]


def test_a_published_package_says_where_its_source_is() -> None:
    """Before publication there is no public source address to state."""
    assert PROJECT["urls"]
    assert not install.IS_PUBLISHED or PROJECT["urls"].keys() >= {"Source", "Documentation"}
