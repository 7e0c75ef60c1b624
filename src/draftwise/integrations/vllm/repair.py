"""A repair of vLLM's CPU backend, which returns uninitialised memory for sampled drafts.

``expand_batch_to_tokens`` repeats each request's temperature, top-k and top-p for its drafted
tokens. On CPU it passes a copy of its output to the C++ kernel, so the returned tensor is never
written (seen in 0.32.0). Greedy requests are not affected; all others sample from a wrong
distribution.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("vllm.draftwise")


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """[batch] values to [num_tokens]: each repeated for every drafted token of its request.

    >>> expand_batch_to_tokens(torch.tensor([0.0, 0.5]), torch.tensor([1, 3]), 3, 0, 1).tolist()
    [1.0, 0.5, 0.5]
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = x
    if replace_from != replace_to:
        replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts.to(torch.int64), output_size=num_tokens)


def is_right(expand: Callable[..., Any]) -> bool:
    """Whether a function matches ``expand_batch_to_tokens`` on the CPU, for floats and integers."""
    for values in (torch.tensor([0.35, 0.7, 0.0]), torch.tensor([3, 5, 0])):
        asked = (values, torch.tensor([2, 3, 6], dtype=torch.int32), 6, 0, 1)
        for _ in range(4):  # memory that was never written may hold the right numbers once
            torch.full((6,), -7, dtype=values.dtype)
            if not torch.equal(expand(*asked), expand_batch_to_tokens(*asked)):
                return False
    return True


def checked(expand: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's own function if it passes the self-test, otherwise the repair.

    The test runs at the first call, because vLLM installs the CPU kernels after loading plug-ins.
    """
    chosen: list[Callable[..., Any]] = []

    @functools.wraps(expand)
    def expand_or_remedy(*args: Any, **kwargs: Any) -> Any:
        if not chosen:
            chosen.append(expand if is_right(expand) else expand_batch_to_tokens)
            if chosen[0] is not expand:
                logger.info("expand_batch_to_tokens of vLLM's CPU backend failed: replaced")
        return chosen[0](*args, **kwargs)

    return expand_or_remedy
