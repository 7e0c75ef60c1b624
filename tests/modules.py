"""The module that defines a public name, for tests that patch something in it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def module_of(defined: Any) -> ModuleType:
    """The module that defines a class or function, wherever it lies in its package."""
    return sys.modules[defined.__module__]
