"""UCB1: the mean seen plus a bonus for what was seen seldom."""

from __future__ import annotations

import math

import numpy as np

from draftwise.checks import scale
from draftwise.policies.parts.tally import Tally
from draftwise.policies.parts.upper_bounds import UpperBounds
from draftwise.types import Floats


def ucb1_indices(means: Floats, counts: Floats, num_rounds: float, beta: float) -> Floats:
    """[K] ``mean + beta * sqrt(2 ln t / n)``; counts [K] are all at least 1.

    >>> ucb1_indices(np.array([0.5]), np.array([2.0]), num_rounds=1, beta=1.0).tolist()
    [0.5]
    """
    bonus: Floats = beta * np.sqrt(2.0 * math.log(num_rounds) / counts)
    return means + bonus


class UCB1(UpperBounds):
    """Play the plan with the highest upper confidence bound.

    Source: MetaSD (Kim et al.), Algorithm 2, lines 2-5 (each plan once) and 7-9; beta 0.01 is
        their appendix F.4. TapOut (section 3.3) is ``beta=1``.
    Update: plan = argmax mean + beta * sqrt(2 ln t / n), t the rounds learned from so far.
    Differs: (1) a plan is owed its first try until something was SEEN of it, so late feedback and
        replayed decisions are right; (2) every seen value counts, not only the played plan's; (3)
        TapOut's t is the round being chosen, one more than MetaSD's and this one: its bonus is
        larger by a factor sqrt(ln (t + 1) / ln t), 3% in round 10 and .1% in round 200.
    Feedback: bandit or richer, in any order.
    State: a Tally: counts, sums, chosen float64[K] (values are unitless); rounds learned.
    Cost: O(K) a round.
    Errors: ValueError if beta is not from 1e-6 to 1e6.

    >>> policy = UCB1(num_plans=2, beta=1.0)
    >>> first = policy.choose()
    >>> from draftwise.types import Feedback
    >>> policy.learn(first, Feedback(np.array([1.0, 0.0]), np.array([True, False])))
    >>> policy.choose().plan
    1
    """

    def __init__(self, num_plans: int, beta: float = 0.01) -> None:
        super().__init__(num_plans)
        self._beta = scale("beta", beta)

    def indices(self, tally: Tally) -> Floats:
        """[K] ``ucb1_indices``."""
        return ucb1_indices(tally.means(), tally.counts, tally.num_rounds, self._beta)
