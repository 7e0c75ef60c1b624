"""One torch thread for tests and their child processes: more threads stall each other."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests load nothing from anywhere
os.environ["OMP_NUM_THREADS"] = "1"
# a process that keeps no bytecode compiles torch's and transformers' Python again: for seconds
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The docs' pages first: each takes up to a minute, and at the end one worker would wait."""
    items.sort(key=lambda item: item.path.name != "test_docs_typed.py")
