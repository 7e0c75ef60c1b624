"""draftwise: faster text from any Hugging Face causal LM, losslessly, learning as it goes.

Importing this package imports nothing else; each name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwise.engine.generation import Result as Result
    from draftwise.engine.records import Round as Round
    from draftwise.engine.verify import verify as verify
    from draftwise.integrations.transformers import CustomGenerate as transformers
    from draftwise.registry import make_guide, make_policy, make_reward
    from draftwise.speculator import Speculator as Speculator
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
    )

__version__ = "0.2.0"

__all__ = [
    "Decision",
    "Draft",
    "DraftwiseError",
    "Evidence",
    "Feedback",
    "Plan",
    "Result",
    "Round",
    "SamplingParams",
    "Scores",
    "Speculator",
    "Verdict",
    "make_guide",
    "make_policy",
    "make_reward",
    "transformers",
    "verify",
]

_ELSEWHERE = {
    "Result": "engine.generation:Result",
    "Round": "engine.records:Round",
    "Speculator": "speculator:Speculator",
    "make_guide": "registry:make_guide",
    "make_policy": "registry:make_policy",
    "make_reward": "registry:make_reward",
    "transformers": "integrations.transformers:CustomGenerate",
    "verify": "engine.verify:verify",
}
"""Where the names are that do not stand in ``types``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'draftwise' has no attribute {name!r}")
    module, _, attribute = _ELSEWHERE.get(name, f"types:{name}").partition(":")
    found = getattr(importlib.import_module(f"draftwise.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
