"""Checks imports between packages, and modules that must not load torch.

The import graph is acyclic. An import that is not in the table fails here: move code rather than
extend the table.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import draftwise

ROOT = Path(draftwise.__file__).parent
LAB = ROOT.parents[1] / "packages" / "lab" / "draftwise_lab"
ZOO = ROOT.parents[1] / "packages" / "zoo" / "draftwise_zoo"
TESTS = [Path(__file__).parent, LAB.parent / "tests"]
TEST_FILES = sorted(file for folder in TESTS for file in folder.rglob("*.py"))
FILES = sorted(ROOT.rglob("*.py"))

WORDS = {
    "errors", "checks", "types", "protocols", "files", "colours", "install", "compiled",
}  # fmt: skip
ARROWS: dict[str, set[str]] = {
    "install": {"errors"},
    "errors": set(),
    "colours": set(),
    "compiled": set(),
    "checks": {"errors"},
    "types": {"errors", "checks"},
    "chat": {"types"},
    "files": {"errors"},
    "state": {"errors", "files"},
    "protocols": {"types"},
    "bandits": WORDS,
    "retrieval": WORDS,
    "controller": WORDS | {"bandits.base", "retrieval"},
    "registry": WORDS | {"bandits.feedback"},
    "nn": WORDS,
    "drafters": WORDS | {"nn", "bandits.stop_rules", "retrieval"},
    "zoo": WORDS,
    "engine": WORDS
    | {"chat", "controller", "bandits.feedback", "nn", "drafters.protocol", "state"},
    "settings": WORDS | {"engine.options", "nn.folder", "registry", "zoo"},
    "pool": WORDS | {"registry", "settings", "nn", "drafters", "zoo"},
    "speculator": WORDS
    | {"chat", "controller", "nn", "drafters.protocol", "engine", "bandits.feedback", "pool"}
    | {"registry", "settings"},
    "integrations": WORDS
    | {"__version__", "controller", "retrieval", "engine", "speculator", "state"},
    "bench": WORDS
    | {"__version__", "chat", "drafters", "engine", "registry", "settings", "speculator", "zoo"},
    "serve": WORDS | {"__version__", "chat", "controller", "engine", "registry", "speculator"},
    "cli": WORDS
    | {"__version__", "chat", "drafters", "retrieval", "engine", "nn", "registry", "zoo"}
    | {"pool", "settings", "speculator", "bench", "serve", "integrations", "state"},
    "__init__": {"types", "registry", "engine", "speculator", "integrations"},
    "__main__": {"cli"},
}
"""The rooms of the package, and what each may import."""
WITHOUT_TORCH = WORDS | {"chat", "bandits", "retrieval", "controller", "registry", "settings"}


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def name_of(file: Path) -> str:
    """The dotted name of a module or package of the product, the lab or the zoo."""
    root = next(root for root in (LAB, ZOO, ROOT) if root in file.parents)
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_of(file): file for root in (ROOT, LAB, ZOO) for file in root.rglob("*.py")}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports_of(file: Path, *, with_names: bool = False) -> set[str]:
    """Full names of all modules that a file imports at any depth, type hints included.

    with_names: also the full names of what it imports from them, which may be modules.
    """
    found: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute here"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "draftwise" else {node.module or ""}
            found |= names if with_names else set()
    return found


def named_by_calls(file: Path) -> set[str]:
    """Full names of modules that a file imports by ``import_module`` with a constant."""
    return {
        str(node.args[0].value)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        if isinstance(node.args[0], ast.Constant)
    }


def is_allowed(imported: str, room: str) -> bool:
    parts = imported.split(".")[1:]
    names = {*parts[:1], ".".join(parts[:2])}
    return not parts or parts[0] == room or not names.isdisjoint(ARROWS[room])


def test_imports_run_one_way() -> None:
    assert {room_of(file) for file in FILES} == ARROWS.keys()
    arrows = [(file, imported) for file in FILES for imported in sorted(imports_of(file))]
    own = [(file, imported) for file, imported in arrows if imported.startswith("draftwise.")]
    assert [arrow for arrow in own if not is_allowed(arrow[1], room_of(arrow[0]))] == []
    # the product finds the lab through entry points, and the zoo by its name, to work without
    assert [arrow for arrow in arrows if re.match("draftwise_(lab|zoo)", arrow[1])] == []
    circle = {room: {arrow.split(".")[0] for arrow in known} for room, known in ARROWS.items()}
    assert list(TopologicalSorter(circle).static_order())


def test_no_module_imports_itself_through_others() -> None:
    """Type hints and calls of ``import_module`` are imports; names exported late are not."""
    graph = {
        name: {
            each
            for each in (imports_of(file, with_names=True) | named_by_calls(file)) & MODULES.keys()
            if name not in {each, "draftwise", "draftwise.controller", "draftwise.serve"}
        }
        for name, file in MODULES.items()
    }
    order = TopologicalSorter(graph).static_order()  # raises CycleError with the cycle
    assert set(order) == MODULES.keys()


def test_no_torch() -> None:
    """Neither by name nor when these modules are imported and every policy is made."""
    for file in FILES:
        if room_of(file) in WITHOUT_TORCH:
            roots = {imported.split(".")[0] for imported in imports_of(file)}
            assert roots.isdisjoint({"torch", "transformers", "tokenizers"}), file
    modules = [
        "draftwise",
        *(name_of(file) for file in FILES if room_of(file) in WITHOUT_TORCH),
        *(name_of(file) for file in LAB.glob("sim/**/*.py") if "plots" not in file.name),
    ]
    program = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
import pytest

import draftwise
from draftwise.registry import POLICIES
draftwise.make_policy("ucb1:beta=0.01", num_plans=3).choose()
for module, _ in POLICIES.values():
    importlib.import_module("draftwise." + module.partition(":")[0])
print(sorted(name for name in ("torch", "transformers", "matplotlib") if name in sys.modules))
"""
    path = {"PYTHONPATH": f"{ROOT.parent}:{LAB.parent}", "PATH": ""}
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=path)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_names_are_imported_from_the_module_that_defines_them() -> None:
    """Packages export only what programs that embed them need."""
    packages = {name for name, file in MODULES.items() if file.name == "__init__.py"}
    files = [*MODULES.values(), *TEST_FILES, *(LAB.parent / "benchmarks").rglob("*.py")]
    wrong = [
        f"{file}: {node.module}.{alias.name}"
        for file in files
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.ImportFrom) and node.module in packages - {"draftwise"}
        for alias in node.names
        if f"{node.module}.{alias.name}" not in MODULES
        and alias.name not in MODULES[node.module].read_text("utf-8")
    ]
    assert wrong == []


def test_public_names() -> None:
    """A snapshot of the public names: adding or removing one is a deliberate decision."""
    assert sorted(draftwise.__all__) == [
        "Decision", "Draft", "DraftwiseError", "Evidence", "Feedback", "Plan", "Result", "Round",
        "SamplingParams", "Scores", "Speculator", "Verdict", "make_policy", "make_reward",
        "make_stop_rule", "transformers", "verify",
    ]  # fmt: skip
    for name in draftwise.__all__:
        assert getattr(draftwise, name) is not None


def test_doors_of_the_server_and_the_controller() -> None:
    """What other programs embed is imported from the package; everything else is not there."""
    doors = {
        "draftwise.serve": ["ServerSettings", "make_app", "make_service"],
        "draftwise.controller": ["Controller", "Limits", "Step"],
    }
    for package, names in doors.items():
        module = import_module(package)
        assert sorted(module.__all__) == names
        assert all(getattr(module, name).__name__ == name for name in names)
        with pytest.raises(AttributeError, match="Nothing"):
            module.Nothing  # noqa: B018
