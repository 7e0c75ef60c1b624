"""Where a model lies, looked at before anything is imported or loaded: no torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    for index in path.glob("*.index.json"):
        _refuse_escapes(index)
    return str(path) if path.exists() else source


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
