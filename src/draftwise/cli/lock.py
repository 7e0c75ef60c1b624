"""One process at a time in a folder that is written to for minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftwise.lines import holding


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder, by a lock that ends with the process whatever ends it.

    Raises DraftwiseError where another process holds it. Without locks (Windows, some network
    disks) nothing is held.
    """
    taken = f"another draftwise is at work in {folder}: wait for it, or give another folder"
    with holding(folder / ".lock", taken):
        yield
