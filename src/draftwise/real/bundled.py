"""Drafters for pretrained targets that come along with draftwise."""

from __future__ import annotations

from pathlib import Path

from draftwise.bundle import find_weights

_WEIGHTS = find_weights(Path(__file__).parent / "weights", "real")
RETRIEVAL = ("lookup", "suffix")
"""What every pretrained target drafts with; it costs nothing to have."""


def drafter_specs(target: str) -> list[str]:
    """What a pretrained target gets when no drafters are named: retrieval, and its own head."""
    return [*RETRIEVAL, *(f"eagle=eagle:{folder}" for folder in head_folders(target))]


def head_folders(target: str) -> list[Path]:
    """The EAGLE heads that were trained for this target, in the authors' layout."""
    if Path(target).name != target:  # a folder or file of the user's own
        return []
    return sorted(config.parent for config in _WEIGHTS.glob(f"{target}/eagle*/config.json"))
