"""Lazy exports of packages (PEP 562): importing a package imports none of its modules."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package's ``__init__.py``.

    The package exports what its ``if TYPE_CHECKING:`` block imports, so type checkers and this
    function read one list. A module is imported when one of its names is first used.
    """

    def get(name: str) -> Any:
        if name.startswith("__") or name not in _places(package):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = _places(package)[name]
        found = getattr(importlib.import_module(module), attribute)
        vars(sys.modules[package])[name] = found
        return found

    def names() -> list[str]:
        return sorted(vars(sys.modules[package]).keys() | _places(package).keys())

    return get, names


@functools.cache
def _places(package: str) -> dict[str, tuple[str, str]]:
    """Exported name -> its module and its name there, read from the package's source."""
    import ast  # only when a name is first used
    from importlib.abc import InspectLoader

    spec = sys.modules[package].__spec__
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for block in ast.parse(spec.loader.get_source(package) or "").body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
