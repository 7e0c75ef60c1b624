"""Any plan, by chance."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.state import Fields, Kept
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats


class Random(Kept):
    """Play a plan drawn uniformly.

    Source: MetaSD (Kim et al.), tables 3 and 4, the baseline ``Rand`` (uniformly random).
    Update: none; means are kept for people to look at. Differs: none. Feedback: any.
    State: a Tally [K]; the random generator. Cost: O(K) to learn, O(1) to choose.

    >>> Random(num_plans=4, rng=np.random.default_rng(0)).probabilities().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    KEPT: ClassVar[Fields] = {"rng": "_rng", "tally": "_tally"}

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        self._num_plans, self._rng, self._tally = num_plans, rng, Tally(num_plans)

    def choose(self) -> Decision:
        """A plan, each with probability 1/K."""
        plan = int(self._rng.integers(self._num_plans))
        return Decision(plan, 1.0 / self._num_plans, self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Keep the means; they change no choice."""
        self._tally.add(*check_feedback(decision, feedback, self._num_plans))

    def probabilities(self) -> Floats:
        """[K] uniform."""
        return np.full(self._num_plans, 1.0 / self._num_plans)

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._tally.means()
