"""Checks imports between packages, modules that must not load torch, and imports of the tests.

The import graph is acyclic. An import that is not in the table fails here: move code rather than
extend the table.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import draftwise

ROOT = Path(draftwise.__file__).parent
TESTS = [Path(__file__).parent, ROOT.parents[1] / "packages" / "lab" / "tests"]
TEST_FILES = sorted(file for folder in TESTS for file in folder.rglob("*.py"))
FILES = sorted(ROOT.rglob("*.py"))

WORDS = {
    "errors",
    "checks",
    "types",
    "protocols",
    "files",
    "colours",
    "install",
    "lazy",
    "compiled",
}
FACADE = {"pool", "settings", "speculator"}
"""The modules that wire concrete parts together; only the outermost packages may import them."""

ARROWS: dict[str, set[str]] = {
    "install": set(),
    "errors": set(),
    "checks": {"errors"},
    "types": {"errors", "checks"},
    "chat": {"types"},
    "files": {"errors"},
    "colours": set(),
    "lazy": set(),
    "compiled": set(),
    "protocols": {"types"},
    "bandits": WORDS,
    "retrieval": WORDS,
    "controller": WORDS | {"bandits.base", "retrieval"},
    "registry": WORDS | {"bandits.feedback"},
    "nn": WORDS,
    "drafters": WORDS | {"nn", "bandits.stop_rules", "retrieval"},
    "zoo": WORDS,
    "engine": WORDS | {"chat", "controller", "bandits.feedback", "nn", "drafters.protocol"},
    "settings": WORDS | {"engine.options", "nn.folder", "registry", "zoo"},
    "pool": WORDS | {"registry", "settings", "nn", "drafters", "zoo"},
    "speculator": WORDS
    | {
        "chat",
        "nn",
        "drafters.protocol",
        "engine",
        "bandits.feedback",
        "pool",
        "registry",
        "settings",
    },
    "integrations": WORDS | {"__version__", "controller", "retrieval", "engine", "speculator"},
    "bench": WORDS
    | {"__version__", "chat", "drafters", "engine", "registry", "settings", "speculator", "zoo"},
    "serve": WORDS | {"__version__", "chat", "controller", "engine", "registry", "speculator"},
    "cli": WORDS
    | {"__version__", "chat", "drafters", "retrieval", "engine", "nn", "registry", "zoo"}
    | {"pool", "settings", "speculator", "bench", "serve", "integrations"},
    "__init__": {"types", "lazy", "registry", "engine", "speculator", "integrations"},
    "__main__": {"cli"},
}
OUTERMOST = {"integrations", "bench", "serve", "cli", "__init__"}
WITHOUT_TORCH = {
    "checks",
    "install",
    "errors",
    "types",
    "chat",
    "files",
    "colours",
    "lazy",
    "compiled",
    "protocols",
    "bandits",
    "retrieval",
    "controller",
} | {
    "registry",
    "settings",
}


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def imports_of(file: Path, *, with_names: bool = False) -> set[str]:
    """Full names of all modules that a file imports at any depth, type hints included.

    with_names: also the full names of what it imports from them, which may be modules.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute here"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "draftwise" else {node.module or ""}
            found |= names if with_names else set()
    return found


def is_allowed(imported: str, room: str) -> bool:
    parts = imported.split(".")[1:]
    return (
        not parts
        or parts[0] == room
        or not {parts[0], ".".join(parts[:2])}.isdisjoint(ARROWS[room])
    )


LAB = ROOT.parents[1] / "packages" / "lab" / "draftwise_lab"
ZOO = ROOT.parents[1] / "packages" / "zoo" / "draftwise_zoo"


def name_of(file: Path) -> str:
    """The dotted name of a module or package of the product, the lab or the zoo."""
    root = next(root for root in (LAB, ZOO, ROOT) if root in file.parents)
    parts = file.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_the_product_never_imports_the_lab_or_the_zoo() -> None:
    """The product finds the lab through entry points, and the zoo by its name, to work without."""
    arrows = [f"{file.relative_to(ROOT)}: {name}" for file in FILES for name in imports_of(file)]
    assert [arrow for arrow in arrows if re.search("draftwise_(lab|zoo)", arrow)] == []


def named_by_calls(file: Path) -> set[str]:
    """Full names of modules that a file imports by ``import_module`` with a constant."""
    return {
        str(node.args[0].value)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        if isinstance(node.args[0], ast.Constant)
    }


def is_lazy(file: Path) -> bool:
    return "exports(__name__)" in file.read_text(encoding="utf-8")


def test_no_module_imports_itself_through_others() -> None:
    """Type hints and calls of ``import_module`` are imports; lazy exports of a package are not."""
    files = {name_of(file): file for root in (ROOT, LAB, ZOO) for file in root.rglob("*.py")}
    graph = {
        name: {
            each
            for each in (imports_of(file, with_names=True) | named_by_calls(file)) & files.keys()
            if each != name and not (is_lazy(file) and each.startswith(f"{name}."))
        }
        for name, file in files.items()
    }
    order = TopologicalSorter(graph).static_order()  # raises CycleError with the cycle
    assert set(order) == files.keys()


def test_every_room_is_in_the_table() -> None:
    assert {room_of(file) for file in FILES} <= ARROWS.keys()


@pytest.mark.parametrize("room", ARROWS)
def test_imports_run_one_way(room: str) -> None:
    forbidden = [
        f"{file.relative_to(ROOT)} imports {imported}"
        for file in FILES
        if room_of(file) == room
        for imported in sorted(imports_of(file))
        if imported.split(".")[0] == "draftwise" and not is_allowed(imported, room)
    ]
    assert forbidden == []


def test_the_table_itself_has_no_circles() -> None:
    left = {room: {arrow.split(".")[0] for arrow in arrows} for room, arrows in ARROWS.items()}
    while left:
        free = {room for room, arrows in left.items() if not arrows & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {room: arrows for room, arrows in left.items() if room not in free}


def test_only_the_outermost_rooms_look_at_the_facade() -> None:
    for room, arrows in ARROWS.items():
        assert room in FACADE | OUTERMOST or not arrows & FACADE, room


@pytest.mark.parametrize("room", sorted(WITHOUT_TORCH))
def test_no_torch_by_name(room: str) -> None:
    for file in FILES:
        if room_of(file) == room:
            roots = {imported.split(".")[0] for imported in imports_of(file)}
            assert roots.isdisjoint({"torch", "transformers", "tokenizers"}), file


def test_no_torch_at_run_time() -> None:
    """Importing the modules of these packages, and making every policy, must not import torch."""
    modules = [
        "draftwise",
        *(name_of(file) for file in FILES if room_of(file) in WITHOUT_TORCH),
        *(name_of(file) for file in LAB.glob("sim/**/*.py") if "plots" not in file.name),
    ]
    program = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
import draftwise
from draftwise.registry import POLICIES
draftwise.make_policy("ucb1:beta=0.01", num_plans=3).choose()
for module, _ in POLICIES.values():
    importlib.import_module("draftwise." + module.partition(":")[0])
print(sorted(name for name in ("torch", "transformers", "matplotlib") if name in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{ROOT.parent}:{LAB.parent}", "PATH": ""},
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


DOORS = {
    f"draftwise.{name}"
    for name in (
        "bandits.feedback",
        "bandits.rewards",
        "bandits.stop_rules",
        "integrations.transformers",
        "integrations.vllm",
    )
}
"""Subpackages with a public interface of their own."""
INSIDE = "draftwise.integrations."
"""The package whose modules are tested directly: engines load these modules by their full names."""


MODULES = {name_of(file) for root in (ROOT, LAB, ZOO) for file in root.rglob("*.py")}


@pytest.mark.parametrize("file", TEST_FILES, ids=lambda f: f.stem)
def test_tests_import_packages_not_their_modules(file: Path) -> None:
    """Tests import from package interfaces: where a package defines a name may change."""
    deep = {
        name
        for name in imports_of(file, with_names=True)
        if name in MODULES and name.count(".") > 1
        if name not in DOORS and not name.startswith(INSIDE)
    }
    assert deep == set()


PACKAGES = sorted(file for root in (ROOT, LAB, ZOO) for file in root.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_every_export_is_there(package: Path) -> None:
    if not is_lazy(package):
        return
    door = importlib.import_module(name_of(package))
    listed = [
        alias.asname or alias.name
        for block in ast.parse(package.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert listed
    for export in listed:
        assert not isinstance(getattr(door, export), ModuleType), export
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        door.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "file", [f for f in TEST_FILES if f.name.startswith("test_")], ids=lambda file: file.stem
)
def test_every_test_file_has_a_test(file: Path) -> None:
    names = [
        node.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert any(name.startswith("test_") for name in names)


def test_public_names() -> None:
    """A snapshot of the public names: adding or removing one is a deliberate decision."""
    assert sorted(draftwise.__all__) == [
        "Decision",
        "Draft",
        "DraftwiseError",
        "Evidence",
        "Feedback",
        "Plan",
        "Result",
        "Round",
        "SamplingParams",
        "Scores",
        "Speculator",
        "Verdict",
        "make_policy",
        "make_reward",
        "make_stop_rule",
        "transformers",
        "verify",
    ]
    for name in draftwise.__all__:
        assert getattr(draftwise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = draftwise.nonsense
