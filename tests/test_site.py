"""The docs site: anchors exist, every public name has an API page, pictures exist."""

from __future__ import annotations

import re
import runpy
import sys
from functools import cache
from pathlib import Path

import pytest

import draftwise

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site derive them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", page.read_text("utf-8"))
    wrong = [
        f"{path}#{anchor}"
        for path, anchor in links
        if anchor not in anchors((page.parent / path).resolve() if path else page)
    ]
    assert wrong == []


def test_every_public_name_has_its_place_in_the_api() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"^::: draftwise\.(\w+)$", pages, re.MULTILINE))
    assert named == set(draftwise.__all__)


def test_the_pictures_are_those_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regenerating the pictures gives the labels of the committed ones."""
    monkeypatch.setattr(sys, "argv", ["pictures", "--out", str(tmp_path)])
    monkeypatch.syspath_prepend(str(ROOT / "packages" / "lab" / "benchmarks"))
    runpy.run_path(
        str(ROOT / "packages" / "lab" / "benchmarks" / "pictures.py"), run_name="__main__"
    )
    kept = sorted((DOCS / "pictures").glob("*.svg"))
    assert [picture.name for picture in kept] == ["cache.svg", "loop.svg", "price.svg", "tree.svg"]
    for picture in kept:
        made = tmp_path / picture.name
        assert labels(made) == labels(picture)


def labels(picture: Path) -> list[str]:
    """The texts of a picture, in order."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text("utf-8"))
