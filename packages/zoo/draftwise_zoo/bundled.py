"""Drafters for pretrained targets that draftwise bundles."""

from __future__ import annotations

from pathlib import Path

_WEIGHTS = Path(__file__).parent / "real"
RETRIEVAL = ("lookup", "suffix")  # drafters without weights, for every pretrained target


def drafter_specs(target: str) -> list[str]:
    """The default drafters of a pretrained target: retrieval and its EAGLE head."""
    return [*RETRIEVAL, *(f"{name}={spec}" for name, spec in own_specs(target).items())]


def own_specs(target: str) -> dict[str, str]:
    """The heads trained for this target, by name: ``eagle``."""
    return {folder.name: f"eagle:{folder}" for folder in own_folders(target)}


def own_folders(target: str) -> list[Path]:
    if Path(target).name != target:  # a path, not a bundled name
        return []
    return sorted(config.parent for config in _WEIGHTS.glob(f"{target}/*/config.json"))
