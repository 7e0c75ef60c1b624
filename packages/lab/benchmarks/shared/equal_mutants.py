"""Equivalent mutants, and why they are equivalent: ``equal_mutants.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

EQUAL = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""By module and reason."""


def squeezed(code: str) -> str:
    return "".join(code.split())


def why(module: str, becomes: str) -> str | None:
    """The reason why this mutant is equivalent; None if none is known."""
    for reason, mutants in EQUAL.get(module, {}).items():
        if squeezed(becomes) in map(squeezed, mutants):
            return str(reason)
    return None
