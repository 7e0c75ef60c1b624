"""What draftwise needs of transformers is looked up before anything is imported from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import transformers

from draftwise.nn.library import missing as missing_in_transformers

ROOT = Path(transformers.__file__).parent
NAMED = {
    "masking_utils.py": ("def sdpa_mask(", "def sdpa_masks(", "masking_utils.py: sdpa_mask"),
    "cache_utils.py": ("layers", "levels", "cache_utils.py: Cache(layers)"),
    "generation/logits_process.py": (
        "class TopKLogitsWarper", "class TopKWarper", "logits_process.py: TopKLogitsWarper",
    ),
    "generation/utils.py": (
        "custom_generate", "generate_by", "utils.py: _extract_generation_mode_kwargs(custom_gener",
    ),
    "__init__.py": ("AttentionInterface", "Attention", "__init__.py: AttentionInterface"),
}  # fmt: skip
"""By file, a text and what replaces it, and what is then missing."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    root = tmp_path / "transformers"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in ("generation", "integrations", "utils", "models/llama", "models/auto"):
        shutil.copytree(ROOT / part, root / part, ignore=ignored)
    for file in ROOT.glob("*.py"):
        shutil.copy(file, root)
    return root


def test_the_installed_release_has_everything() -> None:
    assert missing_in_transformers(ROOT) == []


@pytest.mark.parametrize("file", NAMED)
def test_what_is_missing_is_named(copied: Path, file: str) -> None:
    assert missing_in_transformers(copied) == []
    old, new, expected = NAMED[file]
    path = copied / file
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    assert any(expected in one for one in missing_in_transformers(copied))
    path.unlink()
    assert any(file in one for one in missing_in_transformers(copied))


def test_the_error_says_what_to_install(copied: Path) -> None:
    """In a process whose transformers lacks a name: one sentence instead of an ImportError."""
    path = copied / "masking_utils.py"
    path.write_text(path.read_text("utf-8").replace("sdpa_mask", "sdpa_masks"), "utf-8")
    program = f"import sys; sys.path.insert(0, {str(copied.parent)!r}); import draftwise; "
    program += "draftwise.Speculator"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("draftwise.errors.DraftwiseError: transformers ")
    for part in (version("transformers"), "masking_utils.py: sdpa_mask", "5.17 to 5.24"):
        assert part in last
