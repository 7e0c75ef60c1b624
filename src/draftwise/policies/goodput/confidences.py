"""How often drafted tokens are accepted, by how sure their drafter was of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from draftwise.policies.goodput.tables import plain, tallies

CONFIDENCES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)
"""Borders of the nine bins of a drafter's largest probability."""

BIN_WEIGHT = 3.0
"""How many alphas a bin's prior counts for."""

BIN_DISCOUNT = 0.995
"""What older alphas of a bin are worth when a new one falls into it."""

_EDGES = (0.0, *CONFIDENCES, 1.0)
_CENTRES = tuple((low + high) / 2 for low, high in pairwise(_EDGES))
_NEXT = tuple(0.14 + 0.75 * (0.4 + 0.4 * centre) for centre in _CENTRES)
"""Acceptance of the token after one of such a bin, before any was seen."""


def bin_of(confidence: float) -> int:
    """The bin of a largest probability.

    >>> [bin_of(confidence) for confidence in (0.1, 0.2, 0.5, 0.97, 1.0)]
    [0, 1, 3, 7, 8]
    """
    return bisect_right(CONFIDENCES, confidence)


def _empty() -> list[float]:
    return [0.0] * len(_CENTRES)


@dataclass(slots=True)
class Bins:
    """One drafter's discounted sums of alphas and of their weights, by bin of confidence.

    num, den: of the token itself. next_num, next_den: of the token after it.

    >>> bins = Bins()
    >>> bins.add([0.97, 0.4], [1.0, 0.0])
    >>> round(bins.accepted(7), 3), round(bins.accepted_next(7), 3)
    (0.981, 0.549)
    """

    num: list[float] = field(default_factory=_empty)
    den: list[float] = field(default_factory=_empty)
    next_num: list[float] = field(default_factory=_empty)
    next_den: list[float] = field(default_factory=_empty)

    def add(self, confidences: Sequence[float], alphas: Sequence[float]) -> None:
        """Each alpha to the bin of its own token's confidence, and to that of the token before.

        confidences: NaN where another drafter wrote the token.
        """
        before = -1
        for confidence, alpha in zip(confidences, alphas, strict=True):
            if confidence != confidence:
                before = -1
                continue
            if before >= 0:
                self.next_num[before] = BIN_DISCOUNT * self.next_num[before] + alpha
                self.next_den[before] = BIN_DISCOUNT * self.next_den[before] + 1.0
            before = bin_of(confidence)
            self.num[before] = BIN_DISCOUNT * self.num[before] + alpha
            self.den[before] = BIN_DISCOUNT * self.den[before] + 1.0

    def accepted(self, index: int) -> float:
        """Acceptance of a token of this bin."""
        return (self.num[index] + BIN_WEIGHT * _CENTRES[index]) / (self.den[index] + BIN_WEIGHT)

    def accepted_next(self, index: int) -> float:
        """Acceptance of the token after one of this bin."""
        held = BIN_WEIGHT * _NEXT[index]
        return (self.next_num[index] + held) / (self.next_den[index] + BIN_WEIGHT)

    def state(self) -> dict[str, Any]:
        """The sums as plain JSON."""
        return plain(self, ("num", "den", "next_num", "next_den"))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Bins:
        """What ``state`` gave; ValueError if it does not fit."""
        return cls(*tallies(state, ("num", "den", "next_num", "next_den"), len(_CENTRES)))
