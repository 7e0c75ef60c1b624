"""Locates a model, and checks its files before anything is loaded; imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from draftwise.files import STATE_BYTES, read_text, strict_json
from draftwise.types import DraftwiseError

CONFIGS = ("config.json", "adapter_config.json")


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object; raises OSError and ValueError."""
    found = json.loads(read_text(file, STATE_BYTES))
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _has(file: Path, key: str) -> bool:
    """Whether a JSON object sets this key; False for a file that cannot be read."""
    try:
        return bool(read_object(file).get(key))
    except (OSError, ValueError):  # whatever loads it says what is wrong with it
        return False


def place(source: str) -> str:
    """A folder's path with ``~`` expanded, or a hub id unchanged.

    Errors: DraftwiseError for a path that does not exist, which would otherwise be taken for a hub
    id, and for a folder without a valid model.
    """
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1
    path = Path(source).expanduser() if source.startswith("~") else Path(source)
    if not source or (looks_local and not path.exists()):
        raise DraftwiseError(f"there is no model folder {source or repr(source)}")
    if path.is_dir() and not any((path / name).exists() for name in CONFIGS):
        raise DraftwiseError(f"{source} has no config.json: it is not a Hugging Face model folder")
    if path.is_file():
        raise DraftwiseError(f"{source} is a file: name a model folder, a hub id or a .gguf file")
    for index in path.glob("*.index.json"):
        _refuse_escapes(index)
    for weights in path.glob("*.safetensors"):
        _refuse_cut(weights)
    return str(path) if path.exists() else source


def config_of(folder: Path) -> dict[str, Any]:
    """The model's ``config.json``, or an adapter's own. Errors: DraftwiseError if it is invalid."""
    file = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
    if file is None:
        raise DraftwiseError(f"{folder} has no config.json: it is not a Hugging Face model folder")
    try:
        return read_object(file)
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"{file} is no model's config ({error}): download it again") from error


def has_template(folder: Path) -> bool:
    if any(folder.glob("chat_template.*")) or any(folder.glob("additional_chat_templates/*")):
        return True
    return _has(folder / "tokenizer_config.json", "chat_template")


def _refuse_cut(weights: Path) -> None:
    try:
        with safe_open(weights, "np"):
            return
    except (OSError, SafetensorError) as error:
        size = weights.stat().st_size
        raise DraftwiseError(
            f"{weights} is cut off or damaged ({size:,} bytes): download it again"
        ) from error


def _refuse_escapes(index: Path) -> None:
    """DraftwiseError if a shard index names a file outside its folder."""
    try:
        shards = set(strict_json(read_text(index, STATE_BYTES))["weight_map"].values())
        outside = [name for name in shards if Path(name).name != name or name == ".."]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DraftwiseError(f"{index} is no list of shards ({error!r})") from error
    if outside:
        raise DraftwiseError(f"{index} names {outside[0]!r}, which is not in its folder")


BORROWS = "draftwise_borrows_embeddings"
"""True in the ``config.json`` of a model without embeddings, which takes its target's."""


def borrows(source: Any) -> bool:
    return isinstance(source, (str, Path)) and _has(Path(source) / "config.json", BORROWS)
