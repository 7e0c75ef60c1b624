"""The commit of the running code, which results name."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import draftwise

_CODE = Path(draftwise.__file__).parent


def commit() -> str | None:
    """Commit of the running code, with ``-dirty`` for local changes; None outside a checkout."""
    revision = _git("rev-parse", "--short", "HEAD")
    if not revision or not _git("ls-files", str(_CODE / "__init__.py")):
        return None  # installed inside another project's checkout, or outside of any
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", str(_CODE))
    return f"{revision}-dirty" if changed else revision


def _git(*arguments: str) -> str:
    """The output of git in the folder of the code; empty if git fails."""
    line = ["git", "-C", str(_CODE), *arguments]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(line, text=True, stderr=subprocess.DEVNULL).strip()
    return ""
