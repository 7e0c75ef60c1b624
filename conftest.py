"""Limit tests and their child processes to one torch thread: more threads would contend.

The lab's commands and policies are entry points. Where pip has not installed the lab, a source tree
gets the metadata that pip would write, beside the lab's source.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests never download
os.environ["DRAFTWISE_TARGET"] = "zoo"  # whatever is installed
os.environ["OMP_NUM_THREADS"] = "1"
# without cached bytecode each child process would spend seconds compiling torch and transformers
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
import torch

torch.set_num_threads(1)
LAB = Path(__file__).parent / "packages" / "lab"


@pytest.fixture
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def pytest_configure() -> None:
    metadata = LAB / "draftwise_lab.egg-info"
    try:
        if distribution("draftwise-lab").locate_file("").resolve() != LAB:  # type: ignore[union-attr]
            return
    except PackageNotFoundError:
        metadata.mkdir(exist_ok=True)
    groups = tomllib.loads((LAB / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {where}" for name, where in entries.items()))
    ]
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: draftwise-lab\nVersion: 0\n",
        "entry_points.txt": "\n".join([*lines, ""]),
    }
    for name, text in files.items():
        file = metadata / name
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow documentation pages first, so that no worker is left waiting for one."""
    items.sort(key=lambda item: item.path.name != "test_docs_typed.py")
