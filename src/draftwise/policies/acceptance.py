"""Estimates of acceptance probabilities from scored tokens: discounted rates, a table by match."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from draftwise.policies.state import dump, load
from draftwise.types import Floats, Scores

PRIOR_WEIGHT = 2.0
"""How many alphas a prior counts for."""

POOL_WEIGHT = 4.0
"""How many alphas the prior counts for against those of all LM drafters together."""

GOOD_POOL = 0.2
"""Mean acceptance of all LM drafters from which on an unknown one is granted the prior."""

MATCH_PRIORS = (0.3, 0.45, 0.55, 0.65, 0.8, 0.9)
"""Acceptance of a retrieved token before any was seen: match length 1, 2, 3-4, 5-8, 9-16, 17+."""

MATCH_DISCOUNT = 0.995
"""What older alphas of a bucket are worth when a new one falls into it."""

FAST_DISCOUNT = 0.8
"""What each alpha loses by the next in the rate that forgets fast: it remembers some five."""

FAST_ODDS = math.log(0.12 / 0.88)
"""How little the fast rate is believed before it has predicted better (log odds)."""

ERROR_WEIGHT = 3.0
"""Log odds for each unit of squared error that one rate made and the other did not."""

LONGEST_MATCH = 17
"""Tokens of a match from which on a longer one says nothing more."""
_BUCKET_OF = np.array([0, 0, 1, *[2] * 2, *[3] * 4, *[4] * 8, 5])  # by match length 0 .. 17

Tally2 = list[float]
"""[num, den]: a discounted sum of alphas and of their weights."""


def bucket(match: int) -> int:
    """The table row of a match length of at least 1 token.

    >>> [bucket(match) for match in (1, 2, 3, 4, 5, 8, 9, 16, 17, 400)]
    [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """
    return int(_BUCKET_OF[min(match, LONGEST_MATCH)])


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


class Rates:
    """How often each LM drafter's tokens are accepted, on this text and of late.

    Where all of them fail, one of which little is known is not tried as if nothing were known.

    Source: this project's own; the two memories are weighted as in Hedge.
    Update: by drafter num, den <- g num + w alpha, g den + w for each alpha of weight w, once with
        the slow g = ``discount`` and once with the fast .8; what is not scored fades by the slow g
        for each emitted token. The pool's num, den add up everybody's alphas and fade like this.
        rate = (num + 2 e) / (den + 2), e = prior * min(1, m / .2), m = (4 prior + pool num) / (4 +
        pool den).
    State: by drafter [num, den] slow, [num, den] fast, squared errors of slow and fast; the pool's.

    >>> rates = Rates(prior=0.55, discount=0.97)
    >>> rates.of("small")
    0.55
    >>> rates.add("other", [0.0] * 28)
    >>> round(rates.of("small"), 3)
    0.189
    """

    def __init__(self, prior: float, discount: float) -> None:
        self._prior, self._discount = prior, discount
        self._rates: dict[str, list[float]] = {}
        self._pool = [0.0, 0.0]

    def of(self, name: str) -> float:
        """The slow and the fast rate, weighted by how well each has predicted."""
        expected = self._expected()
        return best_rate(self._rates[name], expected) if name in self._rates else expected

    def weight(self, name: str) -> float:
        """Of the alphas that the slow rate of a drafter rests on."""
        return self._rates[name][1] if name in self._rates else 0.0

    def fade(self, num_emitted: int, scored: Collection[str]) -> None:
        """So many tokens were emitted, and all drafters but these were not scored on them."""
        kept = self._discount**num_emitted
        self._pool = [kept * part for part in self._pool]
        for name in self._rates.keys() - scored:
            self._rates[name] = [kept * part for part in self._rates[name]]

    def add(self, name: str, alphas: list[float], weight: float = 1.0) -> None:
        """A drafter's alphas, in text order."""
        rates = self._rates.setdefault(name, [0.0] * 6)
        add_to_rates(rates, alphas, self._discount, self._expected(), weight)
        self._pool[0] += weight * sum(alphas)
        self._pool[1] += weight * len(alphas)

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, ("_rates", "_pool"))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, ("_rates", "_pool"), state)

    def _expected(self) -> float:
        num, den = self._pool
        mean = (POOL_WEIGHT * self._prior + num) / (POOL_WEIGHT + den)
        return self._prior * min(1.0, mean / GOOD_POOL)


def add_to_rates(
    rates: list[float], alphas: Iterable[float], discount: float, p: float, weight: float = 1.0
) -> None:
    """Each alpha, in text order, to a slow and to a fast rate, which are judged by it first.

    discount: of the slow rate, and of the errors. p: the prior of both.

    >>> rates = [0.0] * 6
    >>> add_to_rates(rates, [1.0] * 30 + [0.0] * 4, discount=0.97, p=0.55)
    >>> [round(rate(rates[i : i + 2], 0.55), 2) for i in (0, 2)]
    [0.8, 0.45]
    >>> round(best_rate(rates, 0.55), 2)
    0.54
    """
    slow_num, slow_den, fast_num, fast_den, slow_error, fast_error = rates
    held = PRIOR_WEIGHT * p
    for alpha in alphas:
        slow = (slow_num + held) / (slow_den + PRIOR_WEIGHT) - alpha
        fast = (fast_num + held) / (fast_den + PRIOR_WEIGHT) - alpha
        slow_error = discount * slow_error + weight * slow * slow
        fast_error = discount * fast_error + weight * fast * fast
        slow_num = discount * slow_num + weight * alpha
        slow_den = discount * slow_den + weight
        fast_num = FAST_DISCOUNT * fast_num + weight * alpha
        fast_den = FAST_DISCOUNT * fast_den + weight
    rates[:] = slow_num, slow_den, fast_num, fast_den, slow_error, fast_error


def best_rate(rates: list[float], prior: float) -> float:
    """The two rates, weighted by how well each has predicted: Hedge with a prior for the slow."""
    odds = FAST_ODDS + ERROR_WEIGHT * (rates[4] - rates[5])
    fast = 1.0 / (1.0 + math.exp(-min(max(odds, -30.0), 30.0)))
    return fast * rate(rates[2:4], prior) + (1.0 - fast) * rate(rates[0:2], prior)


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
    reached = np.minimum(np.arange(match, match + num), LONGEST_MATCH)
    ladder: Floats = rates[_BUCKET_OF[reached]]
    return ladder
