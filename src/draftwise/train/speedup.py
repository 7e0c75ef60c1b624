"""Whether a drafter pays: its seconds and the target's, measured, and the speed they promise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from draftwise.nn.cache import RaggedCache
from draftwise.nn.heads.eagle import EagleHead, read
from draftwise.nn.model import CausalModel
from draftwise.types import Costs, Floats

MAX_LENGTH = 16
_CONTEXT = 128
_COUNTS = (1, 2, 3, 5, 9, 17)
_REPEATS = 9


@torch.inference_mode()
def measure_costs(target: CausalModel, drafter: CausalModel) -> Costs:
    """Seconds of target forwards over 1 .. ``MAX_LENGTH`` + 1 tokens and of one draft step.

    Medians, behind some text in the cache. Assumes one request, as in the engine at batch 1.
    """
    counts = [count for count in _COUNTS if _CONTEXT + count <= target.max_positions] or [1]
    seconds = np.maximum.accumulate(_seconds(target, counts))
    curve = np.interp(np.arange(1, MAX_LENGTH + 2), counts, seconds)
    return Costs(curve, {drafter.name: float(_seconds(drafter, [1])[0])})


@torch.inference_mode()
def head_costs(target: CausalModel, head: EagleHead) -> Costs:
    """As ``measure_costs``, of a head that drafts from the target's states."""
    counts = [count for count in _COUNTS if _CONTEXT + count <= target.max_positions] or [1]
    seconds = np.maximum.accumulate(_seconds(target, counts))
    curve = np.interp(np.arange(1, MAX_LENGTH + 2), counts, seconds)
    cache, base = RaggedCache(1, _CONTEXT + 1), _CONTEXT
    state = torch.zeros(1, head.config.hidden_size, device=target.device, dtype=target.dtype)
    read(head, cache, [0], [[1] * base], [state.expand(base, -1)])
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        (found,) = read(head, cache, [0], [[1]], [state])
        head.logits(found)[0, 0].item()
        times.append(time.perf_counter() - start)
        cache.lengths[0] = base
    return Costs(curve, {"head": statistics.median(times[1:])})


def chain_speedups(alphas: Sequence[float], target_s: Floats, draft_s: float) -> Floats:
    """[len(alphas)] expected speed over plain decoding, where each depth has its own acceptance.

    >>> chain_speedups([0.5, 0.5], np.array([1.0, 1.0, 1.0]), 0.25).round(2).tolist()
    [1.2, 1.17]
    """
    depths = np.arange(1, 1 + min(len(alphas), len(target_s) - 1))
    emitted = 1 + np.cumsum(np.cumprod(np.array(alphas)[: len(depths)]))
    found: Floats = emitted * target_s[0] / (target_s[depths] + depths * draft_s)
    return found


def _seconds(model: CausalModel, counts: Sequence[int]) -> Floats:
    """[counts] median seconds of a forward over that many tokens."""
    base = min(_CONTEXT, model.max_positions - max(counts))
    cache = model.new_cache(1, base + max(counts))
    model.extend(cache, [0], [[1] * base], keep=1)
    found = []
    for count in counts:
        times = []
        for _ in range(_REPEATS + 1):
            start = time.perf_counter()
            model.extend(cache, [0], [[1] * count], keep=count).flat[-1, 0].item()
            times.append(time.perf_counter() - start)
            cache.lengths[0] = base
        found.append(statistics.median(times[1:]))
    return np.array(found)


def speedups(alpha: float, target_s: Floats, draft_s: float) -> Floats:
    """[n - 1] expected speed over plain decoding of drafts of 1, 2, ... tokens.

    Source: Leviathan et al. (2023), theorem 3.8, with a verification that costs what it was
        measured to. Assumes that tokens are accepted independently, with one probability.

    >>> speedups(1.0, np.array([1.0, 1.0, 1.0]), 0.5).round(2).tolist()
    [1.33, 1.5]
    """
    lengths = np.arange(1, len(target_s))
    emitted = 1 + np.cumsum(alpha**lengths)
    found: Floats = emitted * target_s[0] / (target_s[lengths] + lengths * draft_s)
    return found


def break_even(target_s: Floats, draft_s: float) -> float:
    """The acceptance probability from which on drafting pays; 1 where it never does.

    >>> break_even(np.array([1.0, 1.0]), 0.25)
    0.25
    """
    alphas = np.linspace(0, 1, 1001)
    pays = [alpha for alpha in alphas if speedups(float(alpha), target_s, draft_s).max() >= 1]
    return float(pays[0]) if pays else 1.0
