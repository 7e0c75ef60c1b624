"""draftwise: faster text from any Hugging Face causal LM, losslessly, learning as it goes.

Importing this package does not import torch; the names that need it are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from draftwise.registry import make_guide, make_policy, make_reward
from draftwise.types import (
    Decision,
    Draft,
    DraftwiseError,
    Evidence,
    Feedback,
    Plan,
    Scores,
    Verdict,
)

if TYPE_CHECKING:
    from draftwise.engine.verify import verify as verify
    from draftwise.integrations.transformers import CustomGenerate as transformers
    from draftwise.speculator import Speculator as Speculator

__version__ = "0.1.0"

__all__ = [
    "Decision",
    "Draft",
    "DraftwiseError",
    "Evidence",
    "Feedback",
    "Plan",
    "Scores",
    "Speculator",
    "Verdict",
    "make_guide",
    "make_policy",
    "make_reward",
    "transformers",
    "verify",
]

_LAZY = {
    "Speculator": "draftwise.speculator:Speculator",
    "transformers": "draftwise.integrations.transformers:CustomGenerate",
    "verify": "draftwise.engine.verify:verify",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, attribute = _LAZY[name].split(":")
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'draftwise' has no attribute {name!r}")
