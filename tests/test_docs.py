"""The code of the README and the examples runs, and the names in the docs exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from draftwise import registry
from draftwise.registry import PRESETS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_first_program_of_the_readme_is_short() -> None:
    """The first program has at most ten lines; ``test_docs_typed.py`` runs it."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_every_example_runs(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_table_of_presets_is_the_code(subtests: pytest.Subtests) -> None:
    """The docs' table of presets agrees with ``registry.PRESETS``."""
    page = (ROOT / "docs" / "controller.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page, re.MULTILINE))
    for name, preset in PRESETS.items():
        with subtests.test(name):
            assert name in rows
            if name != "plain":
                assert f"`{preset.policy}`" in rows[name]
                assert f"`{preset.feedback}`" in rows[name]


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", page.read_text())  # code such as `deque[int](maxlen=3)`
    links = re.findall(r"\]\(([^)#:]+)\)", prose)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_name_in_the_tables_can_be_imported() -> None:
    """A wrong entry in a registry table would otherwise fail only when a user names it."""
    tables = {
        "policy": registry.POLICIES,
        "reward": registry.REWARDS,
        "feedback": registry.FEEDBACKS,
        "stop rule": registry.STOP_RULES,
        "drafter": registry.DRAFTERS,
    }
    for kind, table in tables.items():
        for name in table:
            assert registry.lookup(kind, name).__doc__
