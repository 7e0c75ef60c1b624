"""The options of a generation, by name and type: what a type checker holds callers to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from draftwise.chat import Message, Prompt
from draftwise.types import SamplingParams

Single = str | Prompt | Sequence[int] | Sequence[Message]
"""One prompt, for a type checker; more is taken (tensors, what a tokenizer returns)."""


class Options(TypedDict, total=False):
    """The options of ``Speculator.start``, which ``generate`` and ``stream`` take as well."""

    attention_mask: Any
    max_new_tokens: int | Sequence[int]
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    sampling: Sequence[SamplingParams] | None
    stop: str | Sequence[str]
    stop_when: Callable[[int, Sequence[int]], bool] | None
    eos_token_ids: Sequence[int] | None
    ignore_eos: bool
    seed: int | Sequence[int] | None
    trace: str | Path | None
