"""Modules of compiled functions as they are without numba."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any
from unittest import mock

import draftwise

PARTS = ("draftwise.compiled", "draftwise.controller", "draftwise.retrieval")


@functools.cache
def interpreted(name: str) -> Any:
    """A module of ``draftwise``, imported without numba and so not compiled."""
    with (
        mock.patch.dict(sys.modules, {"numba": None}),
        mock.patch.dict(vars(draftwise)),
    ):
        for module in [module for module in sys.modules if module.startswith(PARTS)]:
            del sys.modules[module]
        return importlib.import_module(f"draftwise.{name}")
