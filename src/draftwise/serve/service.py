"""What the routes share: the worker, the parser, metrics, and threads for heavy work."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from draftwise.serve.metrics import Metrics
from draftwise.serve.parse import RequestParser
from draftwise.serve.worker import Worker

_Made = TypeVar("_Made")
LARGE_BODY = 16 * 1024  # bytes; a smaller body is parsed faster than a thread starts
_QUIET_S = 1.0
"""Seconds from the end of a heavy request to the release of its memory: the engine drops its row
after the answer, and many heavy requests are cleaned up after at most once a second."""


class Heavy:
    """Threads for heavy work, whose memory is returned to the system.

    Freed memory would otherwise stay with the process: glibc keeps a heap for each thread, and a
    grammar leaves 40 to 57 MB in the heap of the thread that compiled it. A body that an
    exception's traceback refers to stays until the next garbage collection.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="heavy")
        self._is_due = False

    async def run(self, make: Callable[..., _Made], *given: Any) -> _Made:
        """Run ``make(*given)`` in one of the threads, queueing for it; return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, make, *given)

    def ended(self) -> None:
        """Schedule the release of a heavy request's memory."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_QUIET_S, self._begin)

    def _begin(self) -> None:
        self._is_due = False
        self._pool.submit(give_back)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def give_back() -> None:
    """Collect garbage, and return free pages to the system (glibc only)."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True, slots=True)
class Service:
    """Everything that routes share. models: served names; the first is the canonical one."""

    worker: Worker
    parser: RequestParser
    metrics: Metrics
    models: Sequence[str]
    num_spec_tokens: int
    about: dict[str, Any]
    created: int
    patience_s: float = 60.0
    stuck_s: float = 60.0
    heavy: Heavy = field(default_factory=Heavy)
