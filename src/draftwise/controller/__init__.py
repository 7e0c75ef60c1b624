"""Decides what to draft, and when to draft nothing, for every engine.

An engine that embeds it needs three names. Importing this package imports none of its modules: the
controller needs numba, which vLLM refuses in a process that has not started its workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwise.controller.controller import Controller, Limits
    from draftwise.controller.costs import Step

__all__ = ["Controller", "Limits", "Step"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from draftwise.controller import controller, costs

    return getattr(costs if name == "Step" else controller, name)
