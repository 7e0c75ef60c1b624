"""Inside vLLM: ``vllm serve MODEL --scheduler-cls draftwise.integrations.vllm.Scheduler``.

Importing this needs no vLLM; its two schedulers do, and refuse one that was not tested.
"""

from __future__ import annotations

from typing import Any

__all__ = ["AsyncScheduler", "Scheduler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    from draftwise.integrations.vllm.versions import check_version

    check_version(vllm.__version__)
    if name == "Scheduler":
        from draftwise.integrations.vllm.scheduler import Scheduler

        return Scheduler
    from draftwise.integrations.vllm.asynchronous import AsyncScheduler

    return AsyncScheduler
