"""Discounted UCB: old values fade, so that a plan that got better is found again."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from draftwise.checks import scale, share
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import Fields, Kept, in_range
from draftwise.policies.parts.tally import Tally
from draftwise.policies.ucb1 import ucb1_indices
from draftwise.types import Decision, Feedback, Floats

_LEAST = 1e-9  # values seen; a plan unseen for ages must not divide by an underflown 0


class DiscountedUCB(Kept):
    """Play the plan with the highest upper bound on its discounted mean.

    Source: MetaSD, Algorithm 6 (Kocsis and Szepesvari 2006).
    Update: every round all counts and sums are multiplied by ``discount``, then the seen values
        are added; plan = argmax sum / n + beta * sqrt(2 ln t / n), n the discounted count and t
        the sum of all n.
    Differs: (1) line 9 as printed divides the discounted sum by the plain count, so that every
        mean falls to 0; the cited work divides by the discounted count, and so does this; (2) line
        9 as printed leaves the means of the other plans alone; here their counts fade, which is
        what makes them due again; (3) line 7 prints ln of the rounds; the cited work takes the
        discounted total, and so does this: with n bounded, the other bonus would grow for ever and
        end in playing all plans alike; (4) untried plans and seen values as in ``UCB1``.
    Feedback: bandit or richer; the order matters, as older values count less.
    State: discounted counts and sums float64[K] (unitless); a Tally: plain counts, rounds learned.
    Cost: O(K) a round.
    Errors: ValueError if beta is not from 1e-6 to 1e6 or discount not in (0, 1].

    >>> policy = DiscountedUCB(num_plans=2, discount=0.5)
    >>> for value in (1.0, 0.0):
    ...     policy.learn(Decision(0, 1.0, 1), Feedback(np.full(2, value), np.array([True, False])))
    >>> policy.estimates().round(6).tolist()
    [0.333333, 0.0]
    """

    KEPT: ClassVar[Fields] = {"tally": "_tally", "counts": "_counts", "sums": "_sums"}

    def __init__(self, num_plans: int, beta: float = 0.01, discount: float = 0.98) -> None:
        self._beta = scale("beta", beta)
        self._discount = share("discount", discount)
        self._num_plans, self._tally = num_plans, Tally(num_plans)
        self._counts: Floats = np.zeros(num_plans)
        self._sums: Floats = np.zeros(num_plans)

    def check_memory(self) -> None:
        """Fading only makes less."""
        in_range("counts", self._counts, 0, self._tally.counts * (1 + 1e-9))
        in_range("sums", self._sums, 0, self._counts * (1 + 1e-9))

    def choose(self) -> Decision:
        """An untried plan, else the best index (ties go to the first)."""
        plan = self._best()
        return Decision(plan, 1.0, self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Fade what is known, then add the seen values."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if not seen.any():
            return
        self._tally.add(values, seen)
        self._counts = self._discount * self._counts + seen
        self._sums = self._discount * self._sums + np.where(seen, values, 0.0)

    def probabilities(self) -> Floats:
        """[K] one-hot on the plan that ``choose`` would play."""
        return one_hot(self._best(), self._num_plans)

    def estimates(self) -> Floats:
        """[K] discounted mean value seen."""
        average: Floats = self._sums / np.maximum(self._counts, _LEAST)
        return average

    def _best(self) -> int:
        untried = self._tally.unseen()
        if untried is not None:
            return untried
        counts = np.maximum(self._counts, _LEAST)
        total = max(float(counts.sum()), 1.0)  # ln of less would be below 0
        return int(ucb1_indices(self.estimates(), counts, total, self._beta).argmax())
