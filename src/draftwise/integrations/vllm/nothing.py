"""The proposer of a server without a drafter of its own: proposes nothing, at no cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NullProposer:
    """vLLM's ``method: custom_class``; drafts come from the scheduler."""

    def __init__(self, vllm_config: Any) -> None: ...

    def load_model(self, target_model: Any) -> None: ...

    def propose(self, sampled_token_ids: Sequence[Any], *_: Any, **__: Any) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]
