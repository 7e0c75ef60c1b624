"""The state file: what an engine has learnt, for its next run, and the thread that writes it.

A file is one JSON object: ``draftwise``, the version of the format; ``about``, on what the state
depends; ``learnt``, which each engine fills and checks. A file that another version wrote, that is
damaged or that is about something else is renamed, and learning starts from scratch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwise.errors import DraftwiseError
from draftwise.files import (
    STATE_BYTES,
    holding,
    local_path,
    read_text,
    set_aside,
    strict_json,
    write_text,
)

VERSION = 8
FIRST_SAVE_S, SAVE_EVERY_S = 5.0, 60.0
"""Seconds until a server's first save, and at most between later saves."""

_log = logging.getLogger(__name__)


class UnusableState(DraftwiseError):
    """A state file that is damaged, has another version, or holds no state of draftwise."""

    def __init__(self, path: str | Path, why: Exception | str) -> None:
        super().__init__(f"cannot load {path}: {why}")


def read_state(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file is about, and what was learnt. Raises UnusableState; OSError."""
    try:
        found = strict_json(read_text(path, STATE_BYTES))
        if not isinstance(found, dict) or "draftwise" not in found:
            raise ValueError("it is not a state of draftwise")
        if found["draftwise"] != VERSION:
            raise ValueError(f"its version is {found['draftwise']}, not {VERSION}")
        for key in ("about", "learnt"):
            if not isinstance(found.get(key), dict):
                raise ValueError(f"its {key!r} is no table")
    except ValueError as error:
        raise UnusableState(path, error) from error
    return found["about"], found["learnt"]


def state_text(about: Mapping[str, Any], learnt: Mapping[str, Any]) -> str:
    """The content of a file."""
    whole = {"draftwise": VERSION, "about": dict(about), "learnt": dict(learnt)}
    return json.dumps(whole, allow_nan=False)


def keep_aside(path: Path, error: UnusableState) -> str:
    """Rename an unusable file; return a warning. Raises OSError."""
    return f"{error}; it is kept as {set_aside(path)}, and learning starts from scratch"


@contextmanager
def hold(path: Path | None, wait_s: float = 0.0) -> Iterator[None]:
    """Lock a state file for this process, as the command line and the server do.

    Raises DraftwiseError if another process still holds it after ``wait_s`` seconds. path: None =
    no lock.
    """
    if path is None or (place := Path(os.path.realpath(path))) in _HELD:
        yield
        return
    taken = f"another draftwise learns in {path}: wait until it ends, or give another file"
    with holding(place.with_name(f".{place.name}.lock"), taken, wait_s):
        if not wait_s:
            _HELD.add(place)
        try:
            yield
        finally:
            _HELD.discard(place)


_HELD: set[Path] = set()  # files whose lock this process keeps, so a save need not acquire it


def state_path(given: str | None, about: Mapping[str, Any], cache_root: str, rank: int = 0) -> Path:
    """The path of a server's file: ``given``, or for ``auto`` one in the cache folder by ``about``.

    rank: data-parallel rank; each rank has a separate file.

    >>> state_path("auto", {"model": "org/some-model"}, "/cache", rank=1).name[:15]
    'org--some-model'
    """
    suffix = f".rank{rank}" if rank else ""
    if given != "auto":
        path = local_path(given or "")
        return path.with_name(path.name + suffix)
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "_", "--".join(Path(str(about["model"])).parts[-2:]))  # one component
    return local_path(cache_root) / "draftwise" / f"{name}-{mark}{suffix}.json"


def check_path(given: str | None) -> None:
    """Raise DraftwiseError if a state file can neither be read nor created."""
    if given in {None, "auto"}:
        return
    path = local_path(str(given))
    try:
        if path.exists():
            read_text(path, STATE_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"state {given}: {error}; write another path, or null") from error


class StateFile:
    """A server's file for one configuration (``about``).

    Disk errors and unusable files are logged and never stop the server.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], log: logging.Logger = _log) -> None:
        self.path, self._about, self._log = path, dict(about), log

    def restore(self, load_state: Callable[[Mapping[str, Any]], None]) -> bool:
        """Pass the state to ``load_state``, which may reject it; return whether it was restored."""
        try:
            about, learnt = read_state(self.path)
            if about != self._about:
                raise UnusableState(self.path, "it was learnt with other settings")
            self._load(learnt, load_state)
        except FileNotFoundError:
            self._log.info("%s does not exist yet: learning starts from scratch", self.path)
        except OSError as error:
            self._log.warning("cannot read %s (%s): learning starts from scratch", self.path, error)
        except UnusableState as error:
            self._reject(error)
        else:
            return True
        return False

    def _load(
        self, learnt: Mapping[str, Any], load_state: Callable[[Mapping[str, Any]], None]
    ) -> None:
        try:
            load_state(learnt)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise UnusableState(self.path, error) from error

    def _reject(self, error: UnusableState) -> None:
        try:
            self._log.warning("%s", keep_aside(self.path, error))
        except OSError as failed:
            self._log.warning("%s, and cannot be renamed: %s", error, failed)

    def text(self, learnt: Mapping[str, Any]) -> str:
        return state_text(self._about, learnt)


class SaveTimer:
    """Due after FIRST_SAVE_S, then at intervals that double up to SAVE_EVERY_S."""

    def __init__(self, now_s: float) -> None:
        self._saved_s, self._wait_s = now_s, FIRST_SAVE_S

    def is_due(self, now_s: float) -> bool:
        if now_s - self._saved_s < self._wait_s:
            return False
        self._saved_s, self._wait_s = now_s, min(2 * self._wait_s, SAVE_EVERY_S)
        return True


class Writer:
    """Writes whole files in a background thread, at most once a second.

    Only the latest text of each file is written. A step never waits for the disk.
    """

    def __init__(self, log: logging.Logger = _log) -> None:
        self._log = log
        self._texts: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._wake: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._failed: set[Path] = set()
        threading.Thread(target=self._run, name="draftwise-writer", daemon=True).start()

    def write(self, path: Path, text: str) -> None:
        with self._lock:
            self._texts[path] = text
        self._wake.put(None)

    def flush(self) -> None:
        """Wait until all texts are written, for 3 seconds at most."""
        done = threading.Event()
        self._hurry.set()
        self._wake.put(done)
        done.wait(3.0)
        self._hurry.clear()

    def _run(self) -> None:
        while True:
            done = self._wake.get()
            with self._lock:
                texts, self._texts = self._texts, {}
            for path, text in texts.items():
                self._write(path, text)
            if done is not None:
                done.set()
            else:
                self._hurry.wait(1.0)

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
            self._failed.discard(path)
        except OSError as error:
            if path not in self._failed:  # log once, not every minute
                self._log.warning("cannot write %s: %s", path, error)
            self._failed.add(path)
