"""UCBSpec: UCB with a radius that holds for dependent values and random stopping times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from draftwise.policies.parts.checks import check_feedback, check_share
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import dump, load
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats


def ucbspec_radii(counts: Floats, num_rounds: int, delta: float) -> Floats:
    """[K] ``1/2 sqrt((1+n)/n^2 (1 + 2 log(K t^2 sqrt(1+n) / delta)))``; counts are at least 1.

    >>> ucbspec_radii(np.array([3.0]), num_rounds=1, delta=0.5).round(6).tolist()
    [0.647438]
    """
    scale = math.log(len(counts) * num_rounds**2 / delta)
    inside = 1.0 + 2.0 * (scale + 0.5 * np.log1p(counts))
    radii: Floats = 0.5 * np.sqrt((1.0 + counts) * inside) / counts
    return radii


class UCBSpec:
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
    >>> policy.learn(policy.choose(), Feedback(np.ones(2), np.ones(2, dtype=bool)))
    >>> policy.choose().plan
    0
    """

    def __init__(self, num_plans: int, delta: float = 0.5) -> None:
        self._delta = check_share("delta", delta)
        self._num_plans, self._tally = num_plans, Tally(num_plans)

    def choose(self) -> Decision:
        """An untried plan, else the best bound (ties go to the first)."""
        plan = self._best()
        return Decision(plan, 1.0, self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Add the seen values to the means."""
        self._tally.add(*check_feedback(decision, feedback, self._num_plans))

    def probabilities(self) -> Floats:
        """[K] one-hot on the plan that ``choose`` would play."""
        return one_hot(self._best(), self._num_plans)

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._tally.means()

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, ("_tally",))

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, ("_tally",), state)

    def _best(self) -> int:
        tally, untried = self._tally, self._tally.unseen()
        if untried is not None:
            return untried
        radii = ucbspec_radii(tally.counts, tally.num_rounds, self._delta)
        return int((tally.means() + radii).argmax())
