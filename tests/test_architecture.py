"""The house: who may import whom, what stays free of torch, how long a function may be.

The table is DESIGN's: imports run one way. An arrow that is not in it fails here, and the cure is
to move code, not to lengthen the table.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import draftwise

ROOT = Path(draftwise.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

WORDS = {"errors", "checks", "types", "protocols", "dist", "lines", "bundle", "colours"}
FACADE = {"learning", "pool", "presets", "specs", "speculator"}
"""Where concrete things are wired together; only the outermost rooms may look at it."""

ARROWS: dict[str, set[str]] = {
    "sampling": {"errors", "checks"},
    "errors": set(),
    "checks": {"errors"},
    "types": {"errors", "checks", "sampling"},
    "dist": {"types"},
    "chat": {"types"},
    "lines": {"errors"},
    "colours": set(),
    "bundle": set(),
    "protocols": {"types"},
    "rewards": WORDS,
    "feedback": WORDS | {"rewards"},
    "policies": WORDS,
    "controller": WORDS,
    "guides": WORDS,
    "presets": {"types", "checks"},
    "registry": WORDS | {"feedback"},
    "sim": WORDS | {"rewards", "feedback", "policies", "guides", "registry"},
    "nn": WORDS,
    "drafters": WORDS | {"nn", "guides.fixed"},
    "train": WORDS | {"nn", "drafters", "chat"},
    "zoo": WORDS | {"nn", "drafters", "train"},
    "engine": WORDS | {"chat", "feedback", "nn", "drafters.protocol"},
    "real": WORDS | {"nn", "drafters", "train"},
    "specs": {"errors", "registry", "nn.folder"},
    "pool": WORDS | {"registry", "specs", "nn", "drafters", "zoo", "real"},
    "learning": WORDS | {"feedback", "registry", "nn", "drafters.protocol", "engine", "presets"},
    "speculator": WORDS
    | {"chat", "nn", "drafters.protocol", "engine", "learning", "pool", "presets"},
}
ANYTHING = {"cli", "bench", "serve", "integrations", "__init__", "__main__"}
WITHOUT_TORCH = {
    "checks",
    "sampling",
    "errors",
    "types",
    "dist",
    "chat",
    "lines",
    "colours",
    "bundle",
    "protocols",
    "rewards",
    "feedback",
    "policies",
    "controller",
    "guides",
} | {
    "presets",
    "registry",
    "sim",
    "specs",
}
MAX_BODY = 50


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def imports_of(file: Path) -> set[str]:
    """Full names of all modules that a file imports, wherever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute here"
            module = node.module or ""
            if module == "draftwise":
                found |= {f"draftwise.{alias.name}" for alias in node.names}
            else:
                found.add(module)
    return found


def is_allowed(imported: str, room: str) -> bool:
    """Whether a module of the project may be imported from a room."""
    parts = imported.split(".")[1:]
    return (
        not parts
        or parts[0] == room
        or not {parts[0], ".".join(parts[:2])}.isdisjoint(ARROWS[room])
    )


def test_every_room_is_in_the_table() -> None:
    assert {room_of(file) for file in FILES} <= ARROWS.keys() | ANYTHING


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
    """Taking away the rooms that need none of the others ends with no room left."""
    left = {room: {arrow.split(".")[0] for arrow in arrows} for room, arrows in ARROWS.items()}
    while left:
        free = {room for room, arrows in left.items() if not arrows & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {room: arrows for room, arrows in left.items() if room not in free}


def test_only_the_outermost_rooms_look_at_the_facade() -> None:
    for room, arrows in ARROWS.items():
        assert room in FACADE or not arrows & FACADE, room


@pytest.mark.parametrize("room", sorted(WITHOUT_TORCH))
def test_no_torch_by_name(room: str) -> None:
    for file in FILES:
        if room_of(file) == room:
            roots = {imported.split(".")[0] for imported in imports_of(file)}
            assert roots.isdisjoint({"torch", "transformers", "tokenizers"}), file


def test_no_torch_at_run_time() -> None:
    """Importing every module of these rooms, and making every policy, leaves torch alone."""
    modules = [
        "draftwise",
        *(
            ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
            for file in FILES
            if room_of(file) in WITHOUT_TORCH and "plots" not in file.name
        ),
    ]
    program = f"""
import importlib, sys
for name in {[m.removesuffix(".__init__") for m in modules]!r}:
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
        env={"PYTHONPATH": str(ROOT.parent), "PATH": ""},
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_are_short() -> None:
    long = {
        f"{file.relative_to(ROOT)}: {node.name}": num
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (num := body_lines(node)) > MAX_BODY
    }
    assert long == {}


@pytest.mark.parametrize(
    "file", sorted(TESTS.rglob("test_*.py")), ids=lambda file: str(file.relative_to(TESTS))
)
def test_every_test_file_has_a_test(file: Path) -> None:
    names = [
        node.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    assert any(name.startswith("test_") for name in names)


def test_public_names() -> None:
    """A snapshot: what is added or taken away here is a decision."""
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
        "make_guide",
        "make_policy",
        "make_reward",
        "transformers",
        "verify",
    ]
    for name in draftwise.__all__:
        assert getattr(draftwise, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = draftwise.nonsense
