"""What the README and the examples show is run, and what they name exists."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from draftwise import registry
from draftwise.presets import PRESETS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_first_program_of_the_readme_is_short() -> None:
    """At most ten lines; ``test_docs_typed.py`` runs them."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_every_example_runs(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example is a script that prints what it found."""
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_table_of_presets_is_the_code(subtests: pytest.Subtests) -> None:
    """The README's table says what ``presets.py`` does."""
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", README, re.MULTILINE))
    for name, preset in PRESETS.items():
        with subtests.test(name):
            assert name in rows
            if name != "plain":
                assert f"`{preset.policy}`" in rows[name]
                assert f"`{preset.feedback}`" in rows[name]


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file."""
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_name_in_the_tables_can_be_imported() -> None:
    """A line of a table that names nothing would only fail when somebody uses it."""
    tables = {
        "policy": registry.POLICIES,
        "reward": registry.REWARDS,
        "feedback": registry.FEEDBACKS,
        "guide": registry.GUIDES,
        "drafter": registry.DRAFTERS,
    }
    for kind, table in tables.items():
        for name in table:
            assert registry.lookup(kind, table, name).__doc__
