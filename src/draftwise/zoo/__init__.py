"""The bundled tiny models: a target, seven drafters and four EAGLE heads for it.

Nothing here imports torch; `draftwise_lab.zoo.build` is the recipe that made the models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftwise.install import find_weights, hint
from draftwise.types import DraftwiseError

_HERE = Path(__file__).parent
_WEIGHTS = find_weights(_HERE / "weights", "weights")


def target_path() -> Path:
    """The target's Hugging Face folder, with its tokenizer; DraftwiseError if not installed."""
    return _existing(_WEIGHTS / "target")


def drafter_paths() -> dict[str, Path]:
    """Drafter name -> its Hugging Face folder, in the order of the manifest."""
    return {name: _existing(_WEIGHTS / "drafters" / name) for name in manifest()["drafters"]}


def eagle_paths() -> dict[str, Path]:
    """EAGLE head name -> its folder, in the authors' layout, in the order of the manifest."""
    return {name: _existing(_WEIGHTS / "eagles" / name) for name in manifest().get("eagles", ())}


def prompts() -> dict[str, list[str]]:
    """Domain -> held-out prompts, whose source and seed no training document shares; `mixed`
    switches its domain midway.
    """
    return dict(json.loads(_existing(_HERE / "prompts.json").read_text("utf-8")))


def manifest() -> dict[str, Any]:
    """The record of the build.

    Keys: `domains`, `drafters`, `eagles`, `acceptance` (drafter -> domain -> alpha at temperature
    1), `acceptance_by_depth` (head -> domain -> alpha of a draft's first, second, ... token),
    `heldout_loss` (domain -> the target's nats per token), `files` (path -> bytes and sha256),
    `seed`, `versions`, `seconds` (stage -> seconds) and their sum, `build_seconds`.
    """
    return dict(json.loads(_existing(_WEIGHTS / "manifest.json").read_text("utf-8")))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise DraftwiseError(
            f"{path} is missing: this installation has no bundled models; to add them, "
            f"{hint('zoo')}; to train them, draftwise zoo build"
        )
    return path
