"""Limit tests and their child processes to one torch thread: more threads would contend."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests never download
os.environ["OMP_NUM_THREADS"] = "1"
# without cached bytecode each child process would spend seconds compiling torch and transformers
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow documentation pages first, so that no worker is left waiting for one."""
    items.sort(key=lambda item: item.path.name != "test_docs_typed.py")
