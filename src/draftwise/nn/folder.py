"""Where a model lies, and what is wrong with its files before anything is loaded: no torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from draftwise.lines import STATE_BYTES, read_text, strict_json
from draftwise.types import DraftwiseError


def place(source: str) -> str:
    """A folder's path with ``~`` spelled out, or a hub id as it is.

    A path that is not there would be asked of the hub: raises DraftwiseError at once instead, as
    for a folder that holds no model.
    """
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1
    path = Path(source).expanduser() if source.startswith("~") else Path(source)
    if not source or (looks_local and not path.exists()):
        raise DraftwiseError(f"there is no model folder {source or repr(source)}")
    configs = ("config.json", "adapter_config.json")
    if path.is_dir() and not any((path / name).exists() for name in configs):
        raise DraftwiseError(f"{source} has no config.json: it is not a Hugging Face model folder")
    if path.is_file():
        raise DraftwiseError(f"{source} is a file: name a model folder, a hub id or a .gguf file")
    for index in path.glob("*.index.json"):
        _refuse_escapes(index)
    for weights in path.glob("*.safetensors"):
        _refuse_cut(weights)
    return str(path) if path.exists() else source


def config_of(folder: Path) -> dict[str, Any]:
    """The model's ``config.json``, or an adapter's own; raises DraftwiseError for what is none."""
    names = ("config.json", "adapter_config.json")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise DraftwiseError(f"{folder} has no config.json: it is not a Hugging Face model folder")
    try:
        found = json.loads(read_text(file, STATE_BYTES))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"{file} is no model's config ({error}): download it again") from error
    return found


def has_template(folder: Path) -> bool:
    """Whether the tokenizer in this folder brings a chat template."""
    if any(folder.glob("chat_template.*")) or any(folder.glob("additional_chat_templates/*")):
        return True
    try:
        found = json.loads(read_text(folder / "tokenizer_config.json", STATE_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and bool(found.get("chat_template"))


def _refuse_cut(weights: Path) -> None:
    """DraftwiseError where a safetensors file is not as long as its header says it is."""
    try:
        with safe_open(weights, "np"):
            return
    except (OSError, SafetensorError) as error:
        size = weights.stat().st_size
        raise DraftwiseError(
            f"{weights} is cut off or damaged ({size:,} bytes): download it again"
        ) from error


def _refuse_escapes(index: Path) -> None:
    """DraftwiseError where a list of shards names what is no file of its own folder."""
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
    """Whether this is the folder of a model without embeddings."""
    file = Path(source) / "config.json" if isinstance(source, (str, Path)) else None
    if file is None or not file.is_file():
        return False
    try:
        found = json.loads(read_text(file, STATE_BYTES))
    except (OSError, ValueError):  # whatever loads the model says what is wrong with it
        return False
    return isinstance(found, dict) and bool(found.get(BORROWS))
