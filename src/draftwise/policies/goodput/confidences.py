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
NUM_SIBLINGS = 7
"""Alternatives of a token that are told apart; as many may stand beside it."""

_SHARES = tuple(
    tuple(share * (1.0 - centre) for share in (0.18, 0.1, 0.06, 0.05, 0.04, 0.03, 0.03))
    for centre in _CENTRES
)
"""How often the first, second, .. alternative is the one kept, before any was seen."""

_NEXT = tuple(0.14 + 0.75 * (0.4 + 0.4 * centre) for centre in _CENTRES)
"""Acceptance of the token after one of such a bin, before any was seen."""


def bin_of(confidence: float) -> int:
    """The bin of a largest probability.

    >>> [bin_of(confidence) for confidence in (0.1, 0.2, 0.5, 0.97, 1.0)]
    [0, 1, 3, 7, 8]
    """
    return bisect_right(CONFIDENCES, confidence)


_OWN, _OF_SIBLINGS = ("num", "den", "next_num", "next_den"), ("kept", "seen")


def _none_kept() -> list[float]:
    return [0.0] * (len(_CENTRES) * NUM_SIBLINGS)


def _empty() -> list[float]:
    return [0.0] * len(_CENTRES)


@dataclass(slots=True)
class Bins:
    """One drafter's discounted sums of alphas and of their weights, by bin of confidence.

    num, den: of the token itself. next_num, next_den: of the token after it. kept, seen: of its
    alternatives, by bin and rank. wide: what alternatives are worth above their price, in tokens,
    on average.

    >>> bins = Bins()
    >>> bins.add([0.97, 0.4], [1.0, 0.0])
    >>> round(bins.accepted(7), 3), round(bins.accepted_next(7), 3)
    (0.981, 0.549)
    """

    num: list[float] = field(default_factory=_empty)
    den: list[float] = field(default_factory=_empty)
    next_num: list[float] = field(default_factory=_empty)
    next_den: list[float] = field(default_factory=_empty)
    kept: list[float] = field(default_factory=_none_kept)
    seen: list[float] = field(default_factory=_none_kept)
    wide: float = 0.0

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

    def add_siblings(self, siblings: Sequence[tuple[float, int, bool]]) -> None:
        """Whether each alternative was kept; see ``Evidence``."""
        for confidence, rank, is_kept in siblings:
            place = bin_of(confidence) * NUM_SIBLINGS + min(rank, NUM_SIBLINGS) - 1
            self.kept[place] = BIN_DISCOUNT * self.kept[place] + is_kept
            self.seen[place] = BIN_DISCOUNT * self.seen[place] + 1.0

    def siblings(self, index: int) -> list[float]:
        """How often the first, second, .. alternative of a token of this bin is the one kept."""
        places = slice(index * NUM_SIBLINGS, (index + 1) * NUM_SIBLINGS)
        return [
            (kept + BIN_WEIGHT * prior) / (seen + BIN_WEIGHT)
            for kept, seen, prior in zip(
                self.kept[places], self.seen[places], _SHARES[index], strict=True
            )
        ]

    def saw_worth(self, worth: float) -> None:
        """What alternatives of one token were worth above their price, had it been reached."""
        self.wide += (1.0 - BIN_DISCOUNT) * (worth - self.wide) * 10.0

    def accepted(self, index: int) -> float:
        """Acceptance of a token of this bin."""
        return (self.num[index] + BIN_WEIGHT * _CENTRES[index]) / (self.den[index] + BIN_WEIGHT)

    def accepted_next(self, index: int) -> float:
        """Acceptance of the token after one of this bin."""
        held = BIN_WEIGHT * _NEXT[index]
        return (self.next_num[index] + held) / (self.next_den[index] + BIN_WEIGHT)

    def state(self) -> dict[str, Any]:
        """The sums as plain JSON."""
        return {"tokens": plain(self, _OWN), "siblings": plain(self, _OF_SIBLINGS)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Bins:
        """What ``state`` gave; ValueError if it does not fit."""
        own = tallies(state["tokens"], _OWN, len(_CENTRES))
        siblings = tallies(state["siblings"], _OF_SIBLINGS, len(_CENTRES) * NUM_SIBLINGS)
        return cls(own[0], own[1], own[2], own[3], siblings[0], siblings[1])
