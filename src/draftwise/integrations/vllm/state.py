"""The state file, and the thread that writes files."""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftwise.errors import DraftwiseError
from draftwise.files import STATE_BYTES, local_path, read_text, set_aside, strict_json, write_text

logger = logging.getLogger("vllm.draftwise")

_VERSION = 2
FIRST_SAVE_S, SAVE_EVERY_S = 5.0, 60.0
"""Seconds until the first save, and at most between later saves."""
QUIET_S = 1.0


def state_path(given: str | None, about: Mapping[str, Any], cache_root: str, rank: int = 0) -> Path:
    """The path of the state file: ``given``, or for ``auto`` one in the cache folder by ``about``.

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


def about_of(
    config: Any, max_draft: int, device: str, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Everything that costs and acceptance depend on, from a finished ``VllmConfig``; plain JSON.

    device: its name. versions: of vLLM and draftwise. A state with any different value is rejected.
    """
    model, parallel = config.model_config, config.parallel_config
    scheduler, speculative = config.scheduler_config, config.speculative_config
    compilation = config.compilation_config
    return {
        "model": str(model.model),
        "revision": getattr(model, "revision", None),
        "device": device,
        "dtype": str(model.dtype),
        "quantization": str(getattr(model, "quantization", None)),
        "kv_dtype": str(config.cache_config.cache_dtype),
        "tensor_parallel": parallel.tensor_parallel_size,
        "data_parallel": parallel.data_parallel_size,
        "expert_parallel": bool(getattr(parallel, "enable_expert_parallel", False)),
        "drafter": [speculative.method, str(speculative.model)],
        "max_draft": max_draft,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": model.max_model_len,
        "async": bool(scheduler.async_scheduling),
        "eager": bool(model.enforce_eager),
        "graphs": [str(compilation.cudagraph_mode), compilation.max_cudagraph_capture_size],
        "versions": dict(versions),
    }


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
    """The file of the state for one configuration (``about``); an unusable file is renamed.

    Disk errors are logged and never stop the server.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self._about = path, dict(about)

    def load(self) -> Mapping[str, Any]:
        """The state for this configuration; empty if there is none."""
        try:
            found = strict_json(read_text(self.path, STATE_BYTES))
            if found["draftwise"] != _VERSION or found["about"] != self._about:
                raise ValueError("it is of other settings or of another version")
            learnt: Mapping[str, Any] = found["learnt"]
            return learnt
        except FileNotFoundError:
            logger.info("%s does not exist yet: learning starts from nothing", self.path)
        except OSError as error:
            logger.warning("cannot read %s (%s): learning starts from nothing", self.path, error)
        except (ValueError, KeyError, TypeError) as error:
            self._reject(error)
        return {}

    def restore(self, load_state: Callable[[Mapping[str, Any]], None]) -> bool:
        """Pass the state to ``load_state``, which may reject it; return whether it was restored."""
        learnt = self.load()
        if not learnt:
            return False
        try:
            load_state(learnt)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            self._reject(error)
            return False
        return True

    def _reject(self, error: Exception) -> None:
        try:
            done = f": kept as {set_aside(self.path)}, learning starts from nothing"
        except OSError as failed:
            done = f", and cannot be renamed: {failed}"
        logger.warning("%s cannot be used (%s)%s", self.path, error, done)

    def text(self, learnt: Mapping[str, Any]) -> str:
        about = {"draftwise": _VERSION, "about": self._about}
        return json.dumps(about | {"learnt": learnt}, allow_nan=False)


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
    """Writes whole files in a background thread, at most once per QUIET_S.

    Only the latest text of each file is written. A step never waits for the disk.
    """

    def __init__(self) -> None:
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
                self._hurry.wait(QUIET_S)

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
            self._failed.discard(path)
        except OSError as error:
            if path not in self._failed:  # log once, not every minute
                logger.warning("cannot write %s: %s", path, error)
            self._failed.add(path)
