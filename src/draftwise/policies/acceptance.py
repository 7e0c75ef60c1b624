"""Estimates of acceptance probabilities from scored tokens: a discounted rate, a table by match."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from draftwise.types import Floats, Scores

PRIOR_WEIGHT = 2.0
"""How many alphas a prior counts for."""

MATCH_PRIORS = (0.3, 0.45, 0.55, 0.65, 0.8, 0.9)
"""Acceptance of a retrieved token before any was seen: match length 1, 2, 3-4, 5-8, 9-16, 17+."""

MATCH_DISCOUNT = 0.995
"""What older alphas of a bucket are worth when a new one falls into it."""

_LONGEST = 17
_BUCKET_OF = np.array([0, 0, 1, *[2] * 2, *[3] * 4, *[4] * 8, 5])  # by match length 0 .. 17

Tally2 = list[float]
"""[num, den]: a discounted sum of alphas and of their weights."""


def bucket(match: int) -> int:
    """The table row of a match length of at least 1 token.

    >>> [bucket(match) for match in (1, 2, 3, 4, 5, 8, 9, 16, 17, 400)]
    [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """
    return int(_BUCKET_OF[min(match, _LONGEST)])


def add_alphas(tally: Tally2, alphas: Iterable[float], discount: float) -> None:
    """``num <- g num + alpha, den <- g den + 1`` for each alpha, in text order.

    >>> tally = [1.0, 1.0]
    >>> add_alphas(tally, [0.0], discount=0.5)
    >>> tally
    [0.5, 1.5]
    """
    for alpha in alphas:
        tally[0] = discount * tally[0] + alpha
        tally[1] = discount * tally[1] + 1.0


def rate(tally: Tally2, prior: float) -> float:
    """``(num + 2 prior) / (den + 2)``, in [0, 1]."""
    return (tally[0] + PRIOR_WEIGHT * prior) / (tally[1] + PRIOR_WEIGHT)


def new_table() -> list[Tally2]:
    """An empty table: one tally for each bucket of match length."""
    return [[0.0, 0.0] for _ in MATCH_PRIORS]


def add_matches(table: list[Tally2], scores: Scores) -> None:
    """Put every alpha into the bucket of its match length; no match says nothing."""
    assert scores.matches is not None
    for alpha, match in zip(scores.alphas.tolist(), scores.matches.tolist(), strict=True):
        if match > 0:
            add_alphas(table[bucket(match)], (alpha,), MATCH_DISCOUNT)


def match_alphas(table: list[Tally2], match: int, num: int) -> Floats:
    """[num] acceptance of retrieved tokens 1 .. num: each accepted one lengthens the match.

    >>> match_alphas(new_table(), match=2, num=4).round(3).tolist()
    [0.45, 0.55, 0.55, 0.65]
    """
    rates = np.array([rate(tally, prior) for tally, prior in zip(table, MATCH_PRIORS, strict=True)])
    reached = np.minimum(np.arange(match, match + num), _LONGEST)
    ladder: Floats = rates[_BUCKET_OF[reached]]
    return ladder
