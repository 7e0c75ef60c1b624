"""Messages name extras that exist; the Makefile and the metadata agree with what is tested."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

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
