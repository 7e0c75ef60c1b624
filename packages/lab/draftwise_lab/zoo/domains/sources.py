"""The text of the running Python: its standard library and its help pages."""

from __future__ import annotations

import ast
import functools
import sysconfig
import textwrap
from pathlib import Path

HELDOUT_MODULES = (
    "textwrap heapq shlex fractions statistics csv zipfile configparser bisect calendar "
    "difflib fnmatch gettext mailbox netrc optparse pprint sched string tabnanny"
)
_SKIP = frozenset({"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"})


@functools.cache
def modules(heldout: bool) -> tuple[str, ...]:
    """Sources of the standard library's modules, sorted by path; no tests, no generated tables."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _SKIP & set(parts) or "encodings" in parts or parts[0].startswith("_sysconfig"):
            continue
        if (parts[0].removesuffix(".py") in HELDOUT_MODULES.split()) == heldout:
            found.append(path.read_text("utf-8", errors="replace"))
    return tuple(found)


@functools.cache
def functions(heldout: bool) -> tuple[str, ...]:
    """Sources of every function of 4 to 60 lines, dedented."""
    found = []
    for source in modules(heldout):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                chunk = lines[node.lineno - 1 : node.end_lineno]
                if 4 <= len(chunk) <= 60:
                    found.append(textwrap.dedent("\n".join(chunk)) + "\n")
    return tuple(found)


@functools.cache
def passages(heldout: bool) -> tuple[str, ...]:
    """Pieces of English prose of at least 200 characters: help topics and long docstrings."""
    from pydoc_data.topics import topics

    texts = [topics[key] for key in sorted(topics)] if not heldout else []
    for source in modules(heldout):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                texts.append(ast.get_docstring(node) or "")
    return tuple(text for text in texts if len(text) >= 200 and _is_prose(text))


def _is_prose(text: str) -> bool:
    letters = sum(c.isalpha() or c == " " for c in text)
    return letters / len(text) > 0.75
