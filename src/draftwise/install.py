"""What a message tells the user to install."""

from __future__ import annotations


def hint(*extras: str) -> str:
    """The command that installs these extras, for an error message.

    >>> hint("serve", "gguf")
    "pip install -e '.[gguf,serve]' in your checkout of draftwise"
    """
    return f"pip install -e '.[{','.join(sorted(extras))}]' in your checkout of draftwise"


def lab_hint() -> str:
    """The command that installs the lab: simulator, replay, reports, studies and training."""
    return "pip install -e packages/lab in your checkout of draftwise"


def zoo_hint() -> str:
    """The command that installs the bundled models and the reader of GGUF files."""
    return "pip install -e packages/zoo in your checkout of draftwise"
