"""The machine, versions and commit of a measurement, recorded with its results."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from draftwise import __version__
from draftwise.files import cpu_name


def environment(threads: int, **more: Any) -> dict[str, Any]:
    """Machine, threads, versions, date and commit, and ``more`` (dtype, device)."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        **more,
    }


def versions() -> dict[str, str]:
    found = {"draftwise": __version__}
    for package in ("torch", "transformers", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str | None:
    """Commit of the running code, with ``-dirty`` for local changes; None outside a checkout."""
    revision = _git("rev-parse", "--short", "HEAD")
    if not revision or not _git("ls-files", __file__):
        return None  # installed inside another project's checkout, or outside of any
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "..")
    return f"{revision}-dirty" if changed else revision


def command() -> str:
    program, *arguments = sys.argv
    name = Path(program).name
    return shlex.join(["draftwise" if name == "__main__.py" else name, *arguments])


def _git(*arguments: str) -> str:
    """The output of git in this folder; empty if git fails."""
    line = ["git", "-C", str(Path(__file__).parent), *arguments]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(line, text=True, stderr=subprocess.DEVNULL).strip()
    return ""
