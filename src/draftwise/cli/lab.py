"""Entry points of the package ``draftwise-lab``: commands, and parts of ``models``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from draftwise.errors import DraftwiseError
from draftwise.install import lab_hint

GROUP = "draftwise.commands"
"""Entry points of this group: ``COMMAND = "module:function or app"``, ``COMMAND.PART = ...``."""
COMMANDS: Mapping[str, str] = {
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


def is_installed() -> bool:
    return find_spec("draftwise_lab") is not None


def find(name: str) -> Any:
    """The object that an installed package registered as ``name``, or None."""
    from importlib.metadata import entry_points  # 10 ms, which `draftwise --help` saves

    for entry in entry_points(group=GROUP, name=name):
        return entry.load()
    return None


def need(name: str, what: str) -> Any:
    """``find`` with a DraftwiseError instead of None. what: the command or option as typed."""
    found = find(name)
    if found is None:
        raise DraftwiseError(f"{what} needs the lab: {lab_hint()}")
    return found
