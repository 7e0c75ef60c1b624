"""What was learnt, in a file: taken up at the start, written while running and at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from draftwise.lines import set_aside
from draftwise.types import DraftwiseError

_LOG = logging.getLogger(__name__)


class Learnt(Protocol):
    """What ``Speculator.memory`` is, as far as files go."""

    def save(self, path: str | Path) -> None: ...
    def load(self, path: str | Path) -> None: ...


class Keeper:
    """Keeps what was learnt in ``path``; a disk that fails costs the file, never a request.

    every_s: seconds between two writes while requests run: what a crash can cost at most. Called in
    the engine's thread, between rounds. State: when it wrote, and whether requests ran since.
    """

    def __init__(
        self,
        learnt: Learnt,
        path: Path,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._learnt, self._path, self._every_s, self._clock = learnt, path, every_s, clock
        self._written_s, self._is_dirty = clock(), False

    def take_up(self) -> None:
        """Load the file, if there is one; one that cannot be used is set aside, and said."""
        if not self._path.exists():
            return
        try:
            self._learnt.load(self._path)
        except (DraftwiseError, OSError) as error:
            _LOG.warning(
                "%s; it is kept as %s, and learning begins anew", error, set_aside(self._path)
            )

    def touch(self) -> None:
        self._is_dirty = True

    def turn(self) -> float | None:
        """Write if it is time; seconds until it will be, None while there is nothing to write."""
        if not self._is_dirty:
            return None
        left_s = self._written_s + self._every_s - self._clock()
        if left_s > 0:
            return left_s
        self.write()
        return None

    def write(self) -> None:
        """Write now, whole or not at all."""
        self._written_s, self._is_dirty = self._clock(), False
        try:
            self._learnt.save(self._path)
        except OSError as error:
            _LOG.warning("what was learnt could not be written: %s", error)
