"""Integration with vLLM: ``--scheduler-cls draftwise.integrations.vllm.Scheduler``.

Importing this module does not need vLLM; using the schedulers does.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Scheduler", "SynchronousScheduler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from draftwise.integrations.vllm import scheduler

    return getattr(scheduler, name)
