"""Drafters for pretrained targets that draftwise bundles."""

from __future__ import annotations

from pathlib import Path

from draftwise.install import find_weights

_WEIGHTS = find_weights(Path(__file__).parent / "weights", "real")
RETRIEVAL = ("lookup", "suffix")  # drafters without weights, for every pretrained target


def drafter_specs(target: str) -> list[str]:
    """The default drafters of a pretrained target: retrieval and its EAGLE head, whose first token
    is accepted more often than the layer drafter's in every category of Spec-Bench
    (docs/real_models.md).
    """
    specs = own_specs(target).items()
    return [*RETRIEVAL, *(f"{name}={spec}" for name, spec in specs if spec.startswith("eagle:"))]


def own_specs(target: str) -> dict[str, str]:
    """The drafters trained for this target, by name: ``eagle``, ``layer``."""
    return {
        folder.name: f"{'eagle' if folder.name.startswith('eagle') else 'lm'}:{folder}"
        for folder in own_folders(target)
    }


def own_folders(target: str) -> list[Path]:
    if Path(target).name != target:  # a path, not a bundled name
        return []
    return sorted(config.parent for config in _WEIGHTS.glob(f"{target}/*/config.json"))
