"""The files of one run of ``draftwise contest``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Bench:
    """The files written by ``draftwise contest``."""

    folder: Path
    arguments: tuple[str, ...]

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "results.json").read_text())
        return found

    @property
    def report(self) -> str:
        return (self.folder / "report.html").read_text("utf-8")
