"""UCB-Tuned: UCB1 with a bonus that knows how much each plan's values vary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import dump, load
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats


def ucb_tuned_indices(means: Floats, variances: Floats, counts: Floats, num_rounds: int) -> Floats:
    """[K] ``mean + sqrt(ln t / n * min(1/4, V))``, ``V = variance + sqrt(2 ln t / n)``.

    >>> one = np.ones(1)
    >>> ucb_tuned_indices(0.5 * one, 0.0 * one, one, num_rounds=1).tolist()
    [0.5]
    """
    log_rate = math.log(num_rounds) / counts
    bound = np.minimum(0.25, variances + np.sqrt(2.0 * log_rate))
    indices: Floats = means + np.sqrt(log_rate * bound)
    return indices


class UCBTuned:
    """Play the plan with the highest upper bound, tighter where values vary little.

    Source: TapOut, section 3.3 (UCB-Tuned, Auer et al. 2002).
    Update: plan = argmax mean + sqrt(ln t / n * min(1/4, V)), V = variance + sqrt(2 ln t / n).
    Differs: as ``UCB1``: untried plans first, until seen; every seen value counts; the paper's t is
        one more, the round being chosen.
    Feedback: bandit or richer, in any order.
    State: a Tally: counts, sums, squares, chosen float64[K] (unitless); rounds learned.
    Cost: O(K) a round. Errors: ValueError from ``check_feedback``.

    >>> policy = UCBTuned(num_plans=3)
    >>> [policy.choose().plan for _ in range(3)]
    [0, 1, 2]
    """

    def __init__(self, num_plans: int) -> None:
        self._num_plans, self._tally = num_plans, Tally(num_plans)

    def choose(self) -> Decision:
        """An untried plan, else the best index (ties go to the first)."""
        plan = self._best()
        return Decision(plan, 1.0, self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Add the seen values to the means and variances."""
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
        means = tally.means()
        variances = np.maximum(tally.squares / tally.counts - means * means, 0.0)
        return int(ucb_tuned_indices(means, variances, tally.counts, tally.num_rounds).argmax())
