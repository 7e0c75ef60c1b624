"""How often retrieved tokens are accepted, by the length of the match they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwise.policies.goodput.tables import plain, tallies

MATCH_PRIORS = (0.2, 0.4, 0.6, 0.65, 0.8, 0.9)
"""Acceptance of a retrieved token before any was seen: match length 1, 2, 3-4, 5-8, 9-16, 17+."""

MATCH_WEIGHT = 4.0
"""How many alphas a bucket's prior counts for; what is remembered of it, too."""

MATCH_DISCOUNT = 0.995
"""What older alphas of a bucket are worth when a new one falls into it."""

MATCH_CAP = 17
"""Tokens of a match from which on a longer one says nothing more."""
_BUCKET_OF = (0, 0, 1, *[2] * 2, *[3] * 4, *[4] * 8, 5)  # by match length 0 .. 17
BUCKETS = np.array(_BUCKET_OF)
"""The table row of a match of 0, 1, .. ``MATCH_CAP`` tokens."""


def bucket(match: int) -> int:
    """The table row of a match length of at least 1 token.

    >>> [bucket(match) for match in (1, 2, 3, 4, 5, 8, 9, 16, 17, 400)]
    [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """
    return _BUCKET_OF[min(match, MATCH_CAP)]


@dataclass(slots=True)
class MatchTable:
    """One retrieval drafter's acceptance in six buckets of match length.

    prior, rates: acceptance by bucket before anything was seen, and now. num, den: discounted sums.
    """

    prior: Sequence[float] = MATCH_PRIORS
    weight: float = MATCH_WEIGHT
    num: list[float] = field(default_factory=lambda: [0.0] * len(MATCH_PRIORS))
    den: list[float] = field(default_factory=lambda: [0.0] * len(MATCH_PRIORS))
    rates: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.rates = [
            (num + self.weight * prior) / (den + self.weight)
            for num, den, prior in zip(self.num, self.den, self.prior, strict=True)
        ]

    def add(self, alphas: Sequence[float], matches: Sequence[int]) -> None:
        """Every alpha into the bucket of its match length; no match says nothing."""
        for alpha, match in zip(alphas, matches, strict=True):
            if match > 0:
                row = bucket(match)
                self.num[row] = num = MATCH_DISCOUNT * self.num[row] + alpha
                self.den[row] = den = MATCH_DISCOUNT * self.den[row] + 1.0
                held = self.weight * self.prior[row]
                self.rates[row] = (num + held) / (den + self.weight)

    def ladder(self, num: int) -> list[float]:
        """Acceptance of a token after a match of 1, 2, .. ``num`` tokens.

        >>> [round(alpha, 3) for alpha in MatchTable().ladder(5)]
        [0.2, 0.4, 0.6, 0.6, 0.65]
        """
        one, two, four, eight, sixteen, more = self.rates
        rungs = [one, two, four, four, *[eight] * 4, *[sixteen] * 8, *[more] * (num - 16)]
        return rungs[:num]

    def state(self) -> dict[str, Any]:
        """The sums as plain JSON."""
        return plain(self, ("num", "den"))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> MatchTable:
        """What ``state`` gave; ValueError if it does not fit."""
        num, den = tallies(state, ("num", "den"), len(MATCH_PRIORS))
        return cls(num=num, den=den)
