"""UCB-Tuned: UCB1 with a bonus that knows how much each plan's values vary."""

from __future__ import annotations

import math

import numpy as np

from draftwise.policies.parts.tally import Tally
from draftwise.policies.parts.upper_bounds import UpperBounds
from draftwise.types import Floats


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


class UCBTuned(UpperBounds):
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

    def indices(self, tally: Tally) -> Floats:
        """[K] ``ucb_tuned_indices``."""
        means = tally.means()
        variances = np.maximum(tally.squares / tally.counts - means * means, 0.0)
        return ucb_tuned_indices(means, variances, tally.counts, tally.num_rounds)
