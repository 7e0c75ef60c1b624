"""One process at a time in a folder that is written to for minutes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftwise.errors import DraftwiseError


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder, by a lock that ends with the process whatever ends it.

    Raises DraftwiseError where another process holds it. Without locks (Windows, some network
    disks) nothing is held.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DraftwiseError(
                f"another draftwise is at work in {folder}: wait for it, or give another folder"
            ) from None
        except OSError:
            pass
        yield
