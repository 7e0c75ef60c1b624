"""Rewards of seconds: tokens per second under a running bound, and tokens minus their price."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from draftwise.checks import share
from draftwise.rewards import NAN
from draftwise.types import Outcome


class OfSeconds(ABC):
    """Base of rewards that need the round's seconds; ``nan`` for a plan that did not play."""

    looks_ahead: ClassVar[bool] = False

    def __call__(self, outcome: Outcome) -> float:
        if outcome.num_accepted is None or outcome.seconds <= 0.0:
            return NAN
        return self.value(outcome.num_accepted + 1, outcome.seconds, outcome.max_length)

    @abstractmethod
    def value(self, tokens: int, seconds: float, max_length: int) -> float:
        """In [0, 1], for a round that emitted ``tokens`` tokens."""


class Throughput(OfSeconds):
    """Emitted tokens per second, as a share of a nearly constant bound.

    Source: BanditSpec, section 6.2: the reward is the tokens generated per second.
    Update: bound = (L + 1) / seconds of the first round, L the longest length: nothing is faster
        than the longest draft in the shortest time; value = min(1, rate / bound). Only where a rate
        exceeds it (the first round was slow) the bound doubles, once a round.
    Differs: the paper does not scale it, but its radius needs values in [0, 1]. A bound that
        followed the best rate would make values depend on the order of plays; one outlier of the
        clock at most doubles this one.
    State: ``bound`` in tokens per second; 0 before the first round.
    """

    def __init__(self) -> None:
        self.bound = 0.0

    def value(self, tokens: int, seconds: float, max_length: int) -> float:
        rate = tokens / seconds
        if self.bound == 0.0:
            self.bound = (max_length + 1) / seconds
        elif rate > self.bound:
            self.bound *= 2.0
        return min(1.0, rate / self.bound)


class GoodputReward(OfSeconds):
    """Emitted tokens minus the tokens that the current rate would emit in the round's seconds.

    Source: this project's own: tokens - lambda * seconds is above 0 exactly
        for rounds that raise the rate lambda, so its best plan is the fastest.
    Update: value = 1/2 + (tokens - lambda * seconds) / (2 (L + 1)), cut to [0, 1]; then tokens and
        seconds are added to sums, discounted by ``discount`` in (0, 1], whose ratio is lambda.
    """

    def __init__(self, discount: float = 0.97) -> None:
        self._discount, self.tokens, self.seconds = share("discount", discount), 0.0, 0.0

    def value(self, tokens: int, seconds: float, max_length: int) -> float:
        gain = tokens - self.tokens / self.seconds * seconds if self.seconds > 0.0 else 0.0
        self.tokens = self._discount * self.tokens + tokens
        self.seconds = self._discount * self.seconds + seconds
        return min(1.0, max(0.0, 0.5 + gain / (2.0 * (max_length + 1))))
