"""UCBSpec: UCB with a radius that holds for dependent values and random stopping times."""

from __future__ import annotations

import math

import numpy as np

from draftwise.checks import share
from draftwise.policies.parts.tally import Tally
from draftwise.policies.parts.upper_bounds import UpperBounds
from draftwise.types import Floats


def ucbspec_radii(counts: Floats, num_rounds: int, delta: float) -> Floats:
    """[K] ``1/2 sqrt((1+n)/n^2 (1 + 2 log(K t^2 sqrt(1+n) / delta)))``; counts are at least 1.

    >>> ucbspec_radii(np.array([3.0]), num_rounds=1, delta=0.5).round(6).tolist()
    [0.647438]
    """
    scale = math.log(len(counts) * num_rounds**2 / delta)
    inside = 1.0 + 2.0 * (scale + 0.5 * np.log1p(counts))
    radii: Floats = 0.5 * np.sqrt((1.0 + counts) * inside) / counts
    return radii


class UCBSpec(UpperBounds):
    """Play the plan with the highest bound, whose radius allows values that depend on the past.

    Source: BanditSpec (Hou et al.), Algorithm 4 (full version: Algorithm 8).
    Update: plan = argmax mean + radius, with the radius of ``ucbspec_radii``, t rounds so far.
    Differs: (1) values are accepted / L in [0, 1] instead of Y in [1, L+1], so their L/2 becomes
        1/2: the same choices; (2) each plan is first tried until seen, as in UCB1, and every seen
        value counts; (3) the experiments name no delta; the default 1/2 is what the
        proof of Theorem 4.3 takes (appendix D.2).
    Feedback: bandit or richer, in any order.
    State: a Tally: counts, sums, chosen float64[K] (unitless); rounds learned.
    Cost: O(K) a round.
    Errors: ValueError if delta is not in (0, 1].

    >>> policy = UCBSpec(num_plans=2)
    >>> from draftwise.types import Feedback
    >>> policy.learn(policy.choose(), Feedback(np.ones(2), np.ones(2, dtype=bool)))
    >>> policy.choose().plan
    0
    """

    def __init__(self, num_plans: int, delta: float = 0.5) -> None:
        super().__init__(num_plans)
        self._delta = share("delta", delta)

    def indices(self, tally: Tally) -> Floats:
        """[K] means and their radii."""
        return tally.means() + ucbspec_radii(tally.counts, tally.num_rounds, self._delta)
