"""Models on disk for server processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.models_on_disk import save_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a target and of a drafter for it."""
    return save_pair(tmp_path_factory.mktemp("models"))
