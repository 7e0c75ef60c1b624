"""Messages name extras that exist; the Makefile and the metadata agree with what is tested."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
SOURCES = [
    file
    for folder in ("src", "packages/lab/draftwise_lab", "packages/zoo/draftwise_zoo")
    for file in (ROOT / folder).rglob("*.py")
]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_messages_name_extras_that_exist() -> None:
    named = set[str]()
    for file in SOURCES:
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "hint":
                named |= {arg.value for arg in call.args if isinstance(arg, ast.Constant)}
    assert {"bench", "gguf", "peft", "serve", "vllm"} <= named <= EXTRAS.keys()


def made(*words: str) -> str:
    """The commands that ``make`` would run."""
    line = ["make", "--no-print-directory", "-n", "-B", *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout.replace("\\\n", " ")


def test_the_demo_installs_no_tools() -> None:
    """``make demo`` installs the package only; ``make test`` and ``make check`` add extras."""

    def given(target: str) -> list[str]:
        return re.findall(r" -e (\S+)$", made(target), re.MULTILINE)

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


@pytest.mark.parametrize("which", ["NEWEST", "OLDEST"])
def test_other_versions_are_tested_apart(which: str) -> None:
    """In an environment of their own, without the tested versions; CI runs both."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert which in re.findall(r"which: \[(.*)\]", workflow)[0].split(", ")
    assert re.search(r"make test \$\{\{ matrix.which \}\}=1", workflow)
    pinned, commands = made("test"), made("test", f"{which}=1")
    assert "constraints.txt" in pinned
    assert "constraints.txt" not in commands
    env = f".venv-{which.lower()}"
    assert set(re.findall(r"\.venv[\w-]*", commands)) == {env}
    assert f"{env}/bin/python -m pytest" in commands
    (oldest,) = [each for each in PROJECT["dependencies"] if each.startswith("transformers")]
    version = re.findall(r">=([\d.]+)", oldest)[0]
    found = set(re.findall(r"transformers==(\S+)", commands))
    assert found == ({f"{version}.0"} if which == "OLDEST" else set())


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
