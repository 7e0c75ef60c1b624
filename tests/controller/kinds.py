"""The controller's modules as they are without numba."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any
from unittest import mock

import draftwise
from draftwise.controller import RetrievalIndex


@functools.cache
def interpreted(name: str = "retrieval") -> Any:
    """A module of the controller's package, imported without numba and so not compiled."""
    package = RetrievalIndex.__module__.rpartition(".")[0]
    with (
        mock.patch.dict(sys.modules, {"numba": None}),
        mock.patch.object(draftwise, "controller", sys.modules[package]),
    ):
        for module in [module for module in sys.modules if module.startswith(package)]:
            del sys.modules[module]
        return importlib.import_module(f"{package}.{name}")
