"""What other packages add: hints to install them, and the commands of ``draftwise-lab``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from draftwise.errors import DraftwiseError

_WITH_ZOO = {"zoo", "gguf", "smollm2", "gemma3", "test", "dev"}
"""Extras that require ``draftwise-zoo``, which a checkout has and an index may not."""


def hint(*extras: str) -> str:
    """The command that installs these extras, for an error message.

    >>> hint("serve", "chat")
    "pip install -e '.[chat,serve]' in your checkout of draftwise"
    >>> hint("gguf")
    "pip install -e packages/zoo -e '.[gguf]' in your checkout of draftwise"
    """
    zoo = "-e packages/zoo " if _WITH_ZOO & set(extras) else ""
    return f"pip install {zoo}-e '.[{','.join(sorted(extras))}]' in your checkout of draftwise"


LAB_HINT = "pip install -e packages/lab in your checkout of draftwise"
ZOO_HINT = "pip install -e packages/zoo in your checkout of draftwise"
"""The bundled models, and the reader of GGUF files."""
GROUP = "draftwise.commands"
"""Entry points of this group: ``COMMAND = "module:function or app"``, ``COMMAND.PART = ...``."""
LAB_COMMANDS: Mapping[str, str] = {
    "contest": "Time draftwise against transformers' methods, with a report; resumes.",
    "simulate": "Compare policies on simulated text, without a model.",
    "sweep": "Compare fixed draft lengths with acceptance heads at many thresholds.",
    "replay": "Play other policies on recorded traffic.",
    "advise": (
        "Find the best fixed setting for engines that do not adapt, and what adapting would gain."
    ),
    "train": "Train drafters, EAGLE heads and stop heads.",
    "prompts": "Let an instruct model write training prompts.",
    "zoo": "Describe or rebuild the bundled models.",
}
"""The lab's commands and their help lines, for listing them without importing the lab."""


def has_lab() -> bool:
    return find_spec("draftwise_lab") is not None


def find_part(name: str, group: str = GROUP) -> Any:
    """The object that an installed package registered as ``name``, or None."""
    from importlib.metadata import entry_points  # 10 ms, which `draftwise --help` saves

    for entry in entry_points(group=group, name=name):
        return entry.load()
    return None


def lab_part(name: str, what: str) -> Any:
    """``find_part`` with a DraftwiseError instead of None. what: the command or option as typed."""
    if (found := find_part(name)) is None:
        raise DraftwiseError(f"{what} needs the lab: {LAB_HINT}")
    return found
