"""mkdocs hooks: pages outside docs/, links between them, stars in the nav, llms.txt, plain text.

Pages are written for readers of the repository. On the site README.md is the first page, other
pages of the root are added, and a link that leaves ``docs/`` points at a copy of its file. A link
to a missing file is left alone, so that the strict build fails on it.

For language models, each page has its Markdown at the same URL with ``.md`` appended, and
``llms.txt`` lists these pages (https://llmstxt.org).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md"} | {
    name: name
    for name in (
        "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md"
    )
}  # fmt: skip
"""Pages outside docs/ and their names on the site."""
OPTIONAL = {"Lab", "Project"}
"""Sections of the nav that llms.txt lists as optional, which readers short of context skip."""
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_markdown: dict[str, str] = {}


def _on_site(path: str) -> str:
    """The path on the site of a file of the repository."""
    inside = path.removeprefix("docs/")
    return PAGES.get(path) or (inside if inside != path else f"files/{path}")


def _in_repository(uri: str) -> str:
    """The path in the repository of a page of the site."""
    if uri.startswith("files/"):
        return uri.removeprefix("files/")
    return {to: path for path, to in PAGES.items()}.get(uri, f"docs/{uri}")


def _target(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _starred(nav: list[Any], pages: list[str]) -> list[Any]:
    """The nav with each star replaced by the pages that no entry names."""

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
    """Expand the stars of the nav."""
    docs = Path(config.docs_dir)
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    config.nav = _starred(config.nav, pages)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root and every file outside docs/ that a page links to."""
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text("utf-8")))
    pages = list(files.documentation_pages())
    for page in pages:  # grows: what a page links to may be a page
        path = _in_repository(page.src_uri)
        for target in {_target(path, link) for _, link, _ in _LINK.findall(page.content_string)}:
            uri = _on_site(target)
            if uri.startswith("files/") and (ROOT / target).is_file() and uri not in files.src_uris:
                file = File.generated(config, uri, abs_src_path=str(ROOT / target),
                                      inclusion=InclusionLevel.NOT_IN_NAV)  # fmt: skip
                files.append(file)
                pages += [file] if file.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at the site instead of the repository."""
    here = page.file.src_uri
    path = _in_repository(here)

    def moved(link: re.Match[str]) -> str:
        target = _target(path, link[2])
        if not (ROOT / target).exists():
            return link[0]
        return f"{link[1]}{posixpath.relpath(_on_site(target), posixpath.dirname(here))}{link[3]}"

    _markdown[here] = _LINK.sub(moved, markdown)
    return _markdown[here]


def _plain(markdown: str) -> str:
    """A page's Markdown without comments, its links to other pages in plain text as well."""
    markdown = re.sub(r"^<!--.*?-->\n+", "", markdown, flags=re.MULTILINE | re.DOTALL)
    markdown = re.sub(r"^::: (\S+)$", r"- `\1`", markdown, flags=re.MULTILINE)
    return re.sub(r"(\]\((?!files/|\.\./files/)[^)\s#:]+)\.md(?=[#)])", r"\1.html.md", markdown)


def _entry(page: Any) -> str:
    """A page's line in llms.txt: title, plain text, and the first sentence below the title."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", _plain(_markdown[page.file.src_uri]))
    paragraphs = [part for part in re.split(r"\n\n+", text) if re.match(r"(?!```)[\w`*]", part)]
    first = " ".join(paragraphs[0].split()) if paragraphs else ""
    sentence = re.split(r"(?<=\w[.])\s", first.replace("**", ""))[0]
    line = f"- [{page.title}]({page.file.dest_uri}.md)"
    return f"{line}: {sentence}" if sentence else line


def on_nav(nav: Any, config: Any, files: Any) -> None:
    """Keep the nav for llms.txt."""
    config.extra["nav"] = nav


def on_post_build(config: Any) -> None:
    """Write llms.txt and the plain text of each page."""
    site = Path(config.site_dir)
    for page in config.extra["nav"].pages:
        target = site / f"{page.file.dest_uri}.md"
        target.write_text(_plain(_markdown[page.file.src_uri]), "utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}."]
    optional = list[str]()
    for item in config.extra["nav"].items:
        pages = [each for each in item.children if each.is_page] if item.is_section else [item]
        entries = [_entry(page) for page in pages]
        if item.title in OPTIONAL:
            optional += entries
        else:
            lines += ["", f"## {item.title if item.is_section else 'Start'}", "", *entries]
    lines += ["", "## Optional", "", *optional, ""]
    (site / "llms.txt").write_text("\n".join(lines), "utf-8")
