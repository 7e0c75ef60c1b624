"""How fast requests get on, and whether they began together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwise.types import Floats

_PRIOR_ROUNDS, _DISCOUNT = 4.0, 0.97
"""Rounds of one token that a request is believed to have had before; what a past round counts."""

TOGETHER = 8
"""Rounds within which requests began that began together: prompts are read one after another."""


class Pace:
    """Tokens a round of one request, lately, and its rounds so far.

    >>> pace = Pace()
    >>> pace.saw(3), round(pace.value, 2)
    (None, 1.41)
    """

    def __init__(self) -> None:
        self.num_rounds = 0
        self._tokens = self._rounds = _PRIOR_ROUNDS

    def saw(self, num_tokens: int) -> None:
        """A round that emitted so many; 0 = the prompt, which is none."""
        if not num_tokens:
            return
        self.num_rounds += 1
        self._tokens = _DISCOUNT * self._tokens + num_tokens
        self._rounds = _DISCOUNT * self._rounds + 1.0

    @property
    def value(self) -> float:
        """Tokens a round, at least about 1."""
        return self._tokens / self._rounds


def paces_of(paces: Sequence[Pace]) -> Floats | None:
    """[B] tokens a round of requests that come and go; None of those that began together."""
    rounds = [pace.num_rounds for pace in paces]
    if max(rounds) - min(rounds) <= TOGETHER:
        return None
    return np.array([pace.value for pace in paces])
