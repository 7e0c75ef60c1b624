"""draftwise: lossless speculative decoding for Hugging Face causal LMs, tuned online.

Importing this package imports no other package; each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwise.engine.outputs import Result, Round
    from draftwise.engine.verify import verify
    from draftwise.integrations.transformers import CustomGenerate as transformers
    from draftwise.registry import make_policy, make_reward, make_stop_rule
    from draftwise.speculator import Speculator
    from draftwise.types import (
        Decision,
        Draft,
        DraftwiseError,
        Evidence,
        Feedback,
        Plan,
        SamplingParams,
        Scores,
        Verdict,
    )  # fmt: skip

__version__ = "0.2.0"

__all__ = [
    "Decision", "Draft", "DraftwiseError", "Evidence", "Feedback", "Plan", "Result", "Round",
    "SamplingParams", "Scores", "Speculator", "Verdict", "make_policy", "make_reward",
    "make_stop_rule", "transformers", "verify",
]  # fmt: skip

_ELSEWHERE = {
    "Result": "engine.outputs", "Round": "engine.outputs", "verify": "engine.verify",
    "transformers": "integrations.transformers", "Speculator": "speculator",
    "make_policy": "registry", "make_reward": "registry", "make_stop_rule": "registry",
}  # fmt: skip
"""Modules of the names that are not in ``types``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'types')}")
    found = getattr(module, "CustomGenerate" if name == "transformers" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
