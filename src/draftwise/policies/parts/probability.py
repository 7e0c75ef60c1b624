"""Probability vectors over plans: making them and drawing from them."""

from __future__ import annotations

import numpy as np

from draftwise.types import Floats


def softmax(logits: Floats) -> Floats:
    """[K] proportional to ``exp(logits)``, without overflow.

    >>> softmax(np.array([1000.0, 1000.0])).tolist()
    [0.5, 0.5]
    """
    weights = np.exp(logits - logits.max())
    normalised: Floats = weights / weights.sum()
    return normalised


def draw(probabilities: Floats, rng: np.random.Generator) -> int:
    """An index drawn from ``probabilities`` [K]; one that has probability 0 is never drawn.

    >>> draw(np.array([0.0, 1.0, 0.0]), np.random.default_rng(0))
    1
    """
    ladder = np.cumsum(probabilities)
    index = int(np.searchsorted(ladder, rng.random() * ladder[-1], side="right"))
    return min(index, int(np.searchsorted(ladder, ladder[-1])))


def one_hot(index: int, num_plans: int) -> Floats:
    """[K] all probability on one plan."""
    vector = np.zeros(num_plans)
    vector[index] = 1.0
    return vector
