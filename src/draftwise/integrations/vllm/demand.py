"""How many drafted tokens a step verifies, decided before its drafts are written.

The latest drafts that the host knows are two steps old. What a number of tokens was worth on
average over recent steps predicts the next drafts better than these drafts alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwise.controller import mixing
from draftwise.types import Floats

DISCOUNT = 0.75  # discount of a mean, for each step
PARTS = 8  # points of the mean worth for each token of a request


class Demand:
    """Mean worth of verified tokens: of a whole step, and by request.

    longest: maximum tokens of a draft. Survival is the probability that all tokens of a draft up to
    each one are accepted. The worth of a step's tokens, the most likely ones first, is kept per
    request as a function of tokens per request, so it fits any number of requests. Drafts in which
    the model drafter wrote another number of tokens (``head``) have means of their own.
    """

    def __init__(self, longest: int) -> None:
        self._each = np.arange(PARTS * longest + 1) / PARTS
        self._worth = np.zeros((longest + 1, len(self._each)))
        self._num_steps = np.zeros(longest + 1, np.int64)
        self._alive: dict[str, dict[int, Floats]] = {}

    def observe(self, names: Sequence[str], alive: Floats, head: int) -> None:
        """Take up the drafts of a step. alive: [requests, longest] survival, 0 behind a draft."""
        num = len(names)
        if not num:
            return
        totals = _totals(alive)
        worth = np.interp(self._each * num, np.arange(len(totals)), totals) / num
        self._num_steps[head] += 1
        weight = max(1 - DISCOUNT, 1 / self._num_steps.item(head))
        self._worth[head] += weight * (worth - self._worth[head])
        for name, row in zip(names, alive, strict=True):
            means = self._alive.setdefault(name, {})
            mean = means.pop(head, row)
            means[head] = mean + (1 - DISCOUNT) * (row - mean)  # the last one is the latest

    def knows(self, head: int) -> bool:
        """Whether any draft was observed in which the model wrote ``head`` tokens."""
        return bool(self._num_steps[head])

    def end(self, name: str) -> None:
        self._alive.pop(name, None)

    def budget(self, num: int, head: int, seconds: Floats, rate: float) -> int:
        """Drafted tokens that a step of ``num`` requests should verify.

        seconds: [most + 1] seconds of the step by number of drafted tokens. rate: tokens per second
        that these must bring.
        """
        each = np.arange(len(seconds)) / num
        return _best(num * np.interp(each, self._each, self._worth[head]), seconds, rate)

    def lengths(
        self, names: Sequence[str], rooms: Sequence[int], head: int, seconds: Floats, rate: float
    ) -> list[int]:
        """Tokens to verify of each draft, at most ``rooms``, of requests that were observed."""
        means = (self._alive[name] for name in names)
        alive = np.stack([own[head] if head in own else own[next(reversed(own))] for own in means])
        capacities = np.asarray(rooms)
        alive[np.arange(alive.shape[1]) >= capacities[:, None]] = 0.0
        most = _best(_totals(alive), seconds, rate)
        found: list[int] = mixing.divide(alive, capacities, most).tolist()
        return found


def _totals(alive: Floats) -> Floats:
    """Expected tokens by number of verified ones, the most likely first."""
    return np.append(0.0, np.sort(alive, axis=None)[::-1].cumsum())


def _best(totals: Floats, seconds: Floats, rate: float) -> int:
    """The number of tokens whose total exceeds their seconds by most."""
    num = min(len(totals), len(seconds))
    return int((totals[:num] - rate * seconds[:num]).argmax())
