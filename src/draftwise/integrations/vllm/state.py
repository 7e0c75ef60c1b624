"""What was learnt, in a file that outlives the server: bounded, one a model and setting."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwise.lines import STATE_BYTES, read_text, set_aside, strict_json, write_text

logger = logging.getLogger("vllm.draftwise")

_VERSION = 1
SAVE_EVERY_S = 60.0


def state_path(given: str | None, model: str, cache_root: str) -> Path | None:
    """Where it lies: as given; for ``auto`` a file of this model's in vLLM's cache folder.

    >>> state_path("auto", "org/some-model", "/cache").name[:15]
    'org--some-model'
    """
    if given is None:
        return None
    if given != "auto":
        return Path(given).expanduser()
    mark = hashlib.sha256(model.encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.-]", "_", "--".join(Path(model).parts[-2:]))  # one name, not a path
    return Path(cache_root).expanduser() / "draftwise" / f"{name}-{mark}.json"


class StateFile:
    """Reads once, writes at most once a minute, all at once; a file that does not fit is left out.

    about: what it was learnt with; another policy, plans or model begins anew. Errors of the disk
    are logged and never stop the server.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self._path, self._about = path, dict(about)
        self._saved_s = 0.0

    def load(self) -> Mapping[str, Any]:
        """What the file holds for this setting; empty if nothing."""
        if self._path is None or not self._path.exists():
            return {}
        try:
            found = strict_json(read_text(self._path, STATE_BYTES))
            if found["draftwise"] != _VERSION or found["about"] != self._about:
                logger.info("%s was learnt with another setting: beginning anew", self._path)
                return {}
            learnt: Mapping[str, Any] = found["learnt"]
            return learnt
        except OSError as error:
            logger.warning("cannot take up %s (%s): beginning anew", self._path, error)
        except (ValueError, KeyError, TypeError) as error:
            aside = set_aside(self._path)
            logger.warning(
                "%s is damaged (%s): kept as %s, beginning anew", self._path, error, aside
            )
        return {}

    def is_due(self, now_s: float) -> bool:
        """Whether a minute has passed since it was written last."""
        return self._path is not None and now_s - self._saved_s >= SAVE_EVERY_S

    def save(self, learnt: Mapping[str, Any], now_s: float) -> None:
        """Write it: a reader never sees half a file."""
        self._saved_s = now_s
        if self._path is None:
            return
        text = json.dumps({"draftwise": _VERSION, "about": self._about, "learnt": learnt})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, text)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)
