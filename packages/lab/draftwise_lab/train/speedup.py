"""Measured seconds of drafter and target, and the speed-up expected from drafting."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from draftwise.nn.cache import RaggedCache
from draftwise.nn.eagle import EagleHead, read
from draftwise.nn.model import CausalModel
from draftwise.types import Costs, Floats

MAX_LENGTH = 16
_CONTEXT = 128
_COUNTS = (1, 2, 3, 5, 9, 17)
_REPEATS = 9


@torch.inference_mode()
def measure_costs(target: CausalModel, drafter: CausalModel | EagleHead) -> Costs:
    """Median seconds of target forwards over 1 .. ``MAX_LENGTH`` + 1 tokens, and of one draft step
    under the model's name or ``head``, at batch 1 after up to 128 tokens.
    """
    counts = [count for count in _COUNTS if _CONTEXT + count <= target.max_positions] or [1]
    seconds = np.maximum.accumulate(_seconds(target, counts))
    curve = np.interp(np.arange(1, MAX_LENGTH + 2), counts, seconds)
    if isinstance(drafter, CausalModel):
        return Costs(curve, {drafter.name: float(_seconds(drafter, [1])[0])})
    return Costs(curve, {"head": _head_seconds(target, drafter)})


def _seconds(model: CausalModel, counts: Sequence[int]) -> Floats:
    base = min(_CONTEXT, model.max_positions - max(counts))
    cache = model.new_cache(1, base + max(counts))
    model.extend(cache, [0], [[1] * base], keep=1)

    def step(count: int) -> None:
        model.extend(cache, [0], [[1] * count], keep=count).flat[-1, 0].item()

    return np.array([_median(cache, base, partial(step, count)) for count in counts])


def _head_seconds(target: CausalModel, head: EagleHead) -> float:
    cache, base = RaggedCache(1, _CONTEXT + 1), _CONTEXT
    state = torch.zeros(1, head.config.hidden_size, device=target.device, dtype=target.dtype)
    read(head, cache, [0], [[1] * base], [state.expand(base, -1)])

    def step() -> None:
        (found,) = read(head, cache, [0], [[1]], [state])
        head.logits(found)[0, 0].item()

    return _median(cache, base, step)


def _median(cache: RaggedCache, base: int, step: Callable[[], None]) -> float:
    """Median seconds of a step after ``base`` tokens, excluding the first, which sets up."""
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
        cache.lengths[0] = base
    return statistics.median(times[1:])


def speedups(alpha: float | Sequence[float], target_s: Floats, draft_s: float) -> Floats:
    """[depths] expected speed relative to plain decoding of drafts of 1, 2, ... tokens.

    alpha: acceptance probability of every token, or by depth. Source: Leviathan et al. (2023),
    theorem 3.8, with measured costs of verification. Assumes independent acceptance of tokens.

    >>> speedups(1.0, np.array([1.0, 1.0, 1.0]), 0.5).round(2).tolist()
    [1.33, 1.5]
    >>> speedups([0.5, 0.5], np.array([1.0, 1.0, 1.0]), 0.25).round(2).tolist()
    [1.2, 1.17]
    """
    alphas = [alpha] * len(target_s) if isinstance(alpha, float) else list(alpha)
    depths = np.arange(1, 1 + min(len(alphas), len(target_s) - 1))
    emitted = 1 + np.cumsum(np.cumprod(np.array(alphas)[: len(depths)]))
    found: Floats = emitted * target_s[0] / (target_s[depths] + depths * draft_s)
    return found


def break_even(target_s: Floats, draft_s: float) -> float:
    """The acceptance probability above which drafting pays; 1 if it never does.

    >>> break_even(np.array([1.0, 1.0]), 0.25)
    0.25
    """
    alphas = np.linspace(0, 1, 1001).tolist()
    return next((a for a in alphas if speedups(a, target_s, draft_s).max() >= 1), 1.0)
