"""What mkdocs is told: pages from the repository's root, linked files, stars in the list of pages.

Pages are written for a reader of the repository. Here README.md becomes the first page, the other
pages of the root join, a link that leaves ``docs/`` leads to a copy of its file, and a link to what
does not exist stays as it is, so that the strict build refuses it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md"} | {
    name: name
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")
}
"""Pages outside of docs/, and what they are called on the site."""
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def _on_site(path: str) -> str:
    """Where a file of the repository stands on the site."""
    inside = path.removeprefix("docs/")
    return PAGES.get(path) or (inside if inside != path else f"files/{path}")


def _in_repository(uri: str) -> str:
    """Where a page of the site stands in the repository."""
    return {to: path for path, to in PAGES.items()}.get(uri, f"docs/{uri}")


def _target(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _starred(nav: list[Any], pages: list[str]) -> list[Any]:
    """The list of pages with each star replaced by those that no entry names."""

    def entries(nodes: list[Any]) -> Iterator[str]:
        for node in nodes:
            for each in node.values() if isinstance(node, dict) else [node]:
                yield from entries(each) if isinstance(each, list) else [each]

    named = set(entries(nav))

    def filled(nodes: list[Any]) -> list[Any]:
        made: list[Any] = []
        for node in nodes:
            if isinstance(node, dict):
                ((title, below),) = node.items()
                starred = isinstance(below, str) and "*" in below
                made.append({title: filled([below] if starred else below)
                             if starred or isinstance(below, list) else below})  # fmt: skip
            elif "*" in node:
                found = [page for page in pages if re.fullmatch(node.replace("*", "[^/]+"), page)]
                made += [page for page in found if page not in named]
            else:
                made.append(node)
        return made

    return filled(nav)


def on_config(config: Any) -> Any:
    """Fill the list of pages."""
    docs = Path(config.docs_dir)
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    config.nav = _starred(config.nav, pages)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root, and whatever file outside of docs/ a page links to."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text("utf-8")))
    wanted = set()
    for page in files.documentation_pages():
        path = _in_repository(page.src_uri)
        wanted |= {_target(path, link) for _, link, _ in _LINK.findall(page.content_string)}
    for path in sorted(wanted):
        if (ROOT / path).is_file() and _on_site(path).startswith("files/"):
            files.append(File.generated(config, _on_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as they are in the repository, to where these files stand on the site."""
    here = page.file.src_uri
    path = _in_repository(here)

    def moved(link: re.Match[str]) -> str:
        target = _target(path, link[2])
        if not (ROOT / target).exists():
            return link[0]
        return f"{link[1]}{posixpath.relpath(_on_site(target), posixpath.dirname(here))}{link[3]}"

    return _LINK.sub(moved, markdown)
