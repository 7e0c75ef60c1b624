"""Examples run; links, anchors and names in the docs exist."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import draftwise
from draftwise import registry
from draftwise.registry import PRESETS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_every_example_runs(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_notebook_runs_and_shows_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, 1):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        kinds = {output["output_type"] for output in cell["outputs"]}
        assert bool(capsys.readouterr().out) == ("stream" in kinds), number
        assert (cell["execution_count"], "error" in kinds) == (number, False)


def test_examples_of_docstrings_print_what_they_show() -> None:
    source = ROOT / "src"
    files = [file for file in source.glob("draftwise/**/*.py") if ">>> " in file.read_text("utf-8")]
    for file in files:
        parts = file.relative_to(source).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        done = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert (done.failed, done.attempted > 0) == (0, True), name


def test_the_first_program_of_the_readme_is_short() -> None:
    """The first program has at most ten lines; ``test_docs_typed.py`` runs it."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_the_table_of_presets_is_the_code() -> None:
    """The docs' table of presets agrees with ``registry.PRESETS``."""
    page = (DOCS / "controller.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page, re.MULTILINE))
    for name, preset in PRESETS.items():
        assert name in rows
        for said in (preset.policy, preset.feedback) if name != "plain" else ():
            assert f"`{said}`" in rows[name], name


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site derive them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in shown}


def test_links_and_anchors_lead_somewhere() -> None:
    missing = []
    for page in PAGES:
        prose = re.sub(r"`[^`\n]*`", "", page.read_text())  # code such as `deque[int](maxlen=3)`
        for path, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]+))?\)", prose):
            place = (page.parent / path).resolve() if path else page
            if not place.exists() or (anchor and anchor not in anchors(place)):
                missing.append(f"{page.name}: {path}#{anchor}")
    assert missing == []


def test_every_public_name_has_its_place_in_the_api() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"^::: draftwise\.(\w+)$", pages, re.MULTILINE))
    assert named == set(draftwise.__all__)


def test_every_name_in_the_tables_can_be_imported() -> None:
    """A wrong entry in a registry table would otherwise fail only when a user names it."""
    for kind, table in registry.TABLES.items():
        for name in table:
            assert registry.lookup(kind, name).__doc__
