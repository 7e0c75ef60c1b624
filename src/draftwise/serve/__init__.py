"""An OpenAI-compatible server: HTTP handlers submit requests to a thread that owns the engine.

A program that embeds the server needs three names, each imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwise.serve.app import make_app
    from draftwise.serve.run import make_service
    from draftwise.serve.settings import ServerSettings

__all__ = ["ServerSettings", "make_app", "make_service"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from draftwise.serve import app, run, settings

    modules = {"make_app": app, "make_service": run, "ServerSettings": settings}
    return getattr(modules[name], name)
