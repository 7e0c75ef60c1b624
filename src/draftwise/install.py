"""What a message tells the user to install, and where installed weights are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def hint(*extras: str) -> str:
    """The command that installs these extras, for an error message.

    >>> hint("serve", "gguf")
    "pip install -e '.[gguf,serve]' in your checkout of draftwise"
    """
    return f"pip install -e '.[{','.join(sorted(extras))}]' in your checkout of draftwise"


def lab_hint() -> str:
    """The command that installs the lab: simulator, replay, reports, studies and training."""
    return "pip install -e packages/lab in your checkout of draftwise"


def find_weights(here: Path, name: str) -> Path:
    """``here`` in a source tree, else the folder ``name`` of the package draftwise-zoo."""
    package = find_spec("draftwise_zoo")
    if here.exists() or package is None or package.origin is None:
        return here
    return Path(package.origin).parent / name
