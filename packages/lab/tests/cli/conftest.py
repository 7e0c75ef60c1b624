"""Models on disk, as for the product's commands, and prompts to train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import pair

__all__ = ["pair"]
PROMPTS = [f"say {word} and more" for word in ("one", "two", "three", "four", "five", "six")] * 4


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("\n".join(PROMPTS))
    return file
