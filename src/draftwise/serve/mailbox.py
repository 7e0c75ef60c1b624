"""From the engine's thread to one HTTP handler: parts of answers, put together until they are read.

A slow reader gets fewer, longer parts. Nothing waits for it: its row is freed when its answer is
complete, and what lies in the mailbox is never more than the answers themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from draftwise.serve.protocol import Delta


class Mailbox:
    """The answers of one HTTP request. State: by answer, what came and was not read yet."""

    def __init__(self, num: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock, self._filled = threading.Lock(), asyncio.Event()
        self._waiting: dict[int, Delta] = {}
        self.slots: Sequence[Slot] = [Slot(self, index) for index in range(num)]

    async def take(self) -> dict[int, Delta]:
        """Wait until something came, and take all of it, by answer."""
        await self._filled.wait()
        with self._lock:
            taken, self._waiting = self._waiting, {}
            self._filled.clear()
        return taken

    def put(self, index: int, delta: Delta) -> None:
        """Add to an answer; from any thread."""
        with self._lock:
            is_first = not self._waiting
            if index in self._waiting:
                self._waiting[index].add(delta)
            else:
                self._waiting[index] = delta
        if is_first and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._filled.set)


class Slot:
    """Where one answer goes."""

    def __init__(self, mailbox: Mailbox, index: int) -> None:
        self._mailbox, self._index = mailbox, index

    def put(self, delta: Delta) -> None:
        """See ``Mailbox.put``."""
        self._mailbox.put(self._index, delta)
