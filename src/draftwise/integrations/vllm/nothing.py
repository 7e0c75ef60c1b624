"""A proposer for servers without a model drafter: proposes nothing, at no cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NullProposer:
    """A class for vLLM's ``method: custom_class``; the scheduler supplies the drafts instead."""

    def __init__(self, vllm_config: Any) -> None: ...

    def load_model(self, target_model: Any) -> None: ...

    def propose(self, sampled_token_ids: Sequence[Any], *_: Any, **__: Any) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]
