"""Large bodies and grammars: read in two threads of their own, and their memory is given back.

What is freed stays with the process otherwise. glibc keeps a heap for each thread, and a grammar
leaves 40 to 57 MB in the heap of the thread that compiled it; a body that an error's traceback
still refers to waits for the collector, which a large object of texts does not wake.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

_Made = TypeVar("_Made")
LARGE_BODY = 16 * 1024
"""Bytes; smaller bodies are read where they arrive, in less time than a thread takes to begin."""
_NUM_THREADS = 2
_QUIET_S = 1.0
"""Seconds from the end of a heavy request to the return of its memory: the engine drops its row
after the answer, and a crowd of heavy requests is tidied up after once a second."""


class Heavy:
    """Threads for heavy work. State: whether memory is about to be given back."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="heavy")
        self._is_due = False

    async def run(self, make: Callable[..., _Made], *given: Any) -> _Made:
        """``make(*given)`` in one of the threads; more than two wait, and no other request does."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, make, *given)

    def ended(self) -> None:
        """A heavy request has ended: give its memory back soon."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_QUIET_S, self._begin)

    def close(self) -> None:
        """End the threads, as soon as what runs in them is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        self._is_due = False
        self._pool.submit(give_back)


def give_back() -> None:
    """Free what only cycles refer to, and return free pages to the system (glibc only)."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection inside: parsing makes no cycles, and is three times as fast without."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
