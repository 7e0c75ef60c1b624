"""draftwise: lossless speculative decoding for Hugging Face causal LMs, tuned online.

Importing this package imports no other package; each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.engine.generation import Result
    from draftwise.engine.outputs import Round
    from draftwise.engine.verify import verify
    from draftwise.integrations.transformers import CustomGenerate as transformers
    from draftwise.registry import make_policy, make_reward, make_stop_rule
    from draftwise.speculator import Speculator
    from draftwise.types import (
        Decision, Draft, DraftwiseError, Evidence, Feedback, Plan, SamplingParams, Scores, Verdict,
    )

__version__ = "0.2.0"

__all__ = [
    "Decision", "Draft", "DraftwiseError", "Evidence", "Feedback", "Plan", "Result", "Round",
    "SamplingParams", "Scores", "Speculator", "Verdict", "make_policy", "make_reward",
    "make_stop_rule", "transformers", "verify",
]  # fmt: skip

__getattr__, _ = exports(__name__)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
