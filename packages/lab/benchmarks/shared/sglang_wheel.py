"""SGLang's modules from an unpacked wheel, on a machine without CUDA and most dependencies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

FOLDER = Path(__file__).parents[4] / ".sglang"
"""Folder into which ``make sglang-wheel`` unpacks the wheel."""
STUBS = ("triton", "triton.language")
"""Kernel modules that the import only compiles with, and never calls."""


@contextmanager
def unpacked(folder: Path = FOLDER) -> Iterator[Any]:
    """``unpacked() as load``: load("speculative.spec_info") imports the module of ``sglang.srt``.
    ``sglang`` itself is not imported, because it would patch transformers. Afterwards sys.modules
    is restored. Errors: FileNotFoundError if nothing is unpacked."""
    if not (folder / "sglang").is_dir():
        raise FileNotFoundError(f"no SGLang in {folder.name} (make sglang-wheel)")
    before, path = set(sys.modules), list(sys.path)
    package = ModuleType("sglang")
    package.__path__ = [str(folder / "sglang")]
    package.__dict__["__version__"] = "0.5.23"
    sys.modules["sglang"] = package
    for name in STUBS:
        if name not in sys.modules:
            stub = MagicMock(__spec__=ModuleSpec(name, None), __path__=[], __name__=name)
            sys.modules[name] = stub
    sys.path.append(str(folder))
    try:
        yield lambda name: importlib.import_module(f"sglang.srt.{name}")
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in {"sglang", "triton"}:
                del sys.modules[name]
