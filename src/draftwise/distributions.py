"""Arithmetic on distributions over the vocabulary, where a point mass is the token itself.

Pure numpy, on any number type: the exact tests run it on fractions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftwise.types import Dist

Point = (int, np.integer)


def mass(dist: Dist, token: int) -> Any:
    """The probability of ``token``."""
    if isinstance(dist, Point):
        return 1 if dist == token else 0
    return dist[token]


def residual(p: Dist, q: Dist) -> Dist:
    """What is left of p after a draw from q was rejected: max(p - q, 0), renormalised."""
    if isinstance(p, Point):
        return p
    if isinstance(q, Point):
        rest = p.copy()
        rest[q] = rest[q] - rest[q]  # a zero of the array's own number type
    else:
        rest = np.maximum(p - q, p - p)
    total = rest.sum()
    # p equals q up to rounding: a rejection has probability 0, and p itself is the limit
    return rest / total if total > 0 else p


def draw(dist: Dist, uniform: Any) -> int:
    """The token at ``uniform`` in [0, 1) of the cumulative distribution; never one of mass 0."""
    if isinstance(dist, Point):
        return int(dist)
    cumulative = np.cumsum(dist if dist.dtype == object else dist.astype(np.float64))
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return token if token < len(dist) else int(np.flatnonzero(dist > 0)[-1])


def overlap(p: Dist, q: Dist) -> float:
    """The acceptance probability of a draw from q: ``sum_v min(p, q)`` = 1 - total variation."""
    if isinstance(q, Point):
        return float(mass(p, int(q))) if q >= 0 else 0.0  # -1: no proposal
    if isinstance(p, Point):
        return float(q[int(p)]) if p >= 0 else 0.0  # -1: logits that were not finite
    return float(np.minimum(p, q).sum())


def ratio(p: Dist, q: Dist, token: int) -> float:
    """``min(1, q/p)`` of a token that the text really has (0 where p is 0)."""
    of_p = float(mass(p, token))
    return min(1.0, float(mass(q, token)) / of_p) if of_p > 0 else 0.0


def is_broken(dist: Dist) -> bool:
    """Whether this stands for logits that were not finite (the token -1)."""
    return isinstance(dist, int) and dist < 0
