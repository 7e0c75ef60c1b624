"""Finds the module that defines a public name, for tests that patch something in that module."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def module_of(defined: Any) -> ModuleType:
    return sys.modules[defined.__module__]
