"""Sliding-window UCB: only the last rounds count."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from draftwise.checks import scale, whole
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import Fields, Kept, in_range
from draftwise.policies.ucb1 import ucb1_indices
from draftwise.types import Bools, Decision, Feedback, Floats, Ints

_LONGEST = 10_000
"""Rounds of the longest window: every round reads all of it."""


class SlidingUCB(Kept):
    """Play the plan with the highest upper bound on its mean over the last ``window`` rounds.

    Source: MetaSD, Algorithm 8 (Garivier and Moulines 2011).
    Update: mean and n over the last ``window`` rounds; plan = argmax mean + beta sqrt(2 ln t / n).
    Differs: (1) a plan that has left the window (n = 0) is due at once, the one chosen longest ago
        first; the box leaves 0/0 open; (2) the default window of 100 rounds is ours, the paper
        names none; (3) every seen value counts.
    Feedback: bandit or richer; the order matters once the window is full.
    State: values float64[window, K] and seen bool[window, K], a ring; the round in which each plan
        was last chosen int64[K]; rounds learned.
    Cost: O(window K) a round.
    Errors: ValueError if beta is not from 1e-6 to 1e6, or window not from 1 to 10,000.

    >>> policy = SlidingUCB(num_plans=1, window=2)
    >>> for value in (1.0, 0.5, 0.25):
    ...     policy.learn(Decision(0, 1.0, 1), Feedback(np.array([value]), np.array([True])))
    >>> policy.estimates().tolist()
    [0.375]
    """

    KEPT: ClassVar[Fields] = {
        "values": "_values",
        "seen": "_seen",
        "chosen": "_chosen",
        "num_rounds": "_num_rounds",
    }

    def __init__(self, num_plans: int, beta: float = 0.01, window: int = 100) -> None:
        self._beta, self._window = scale("beta", beta), whole("window", window, 1, _LONGEST)
        self._num_plans, self._num_rounds = num_plans, 0
        self._values: Floats = np.zeros((window, num_plans))
        self._seen: Bools = np.zeros((window, num_plans), dtype=np.bool_)
        self._chosen: Ints = np.zeros(num_plans, dtype=np.int64)

    def check_memory(self) -> None:
        """Values lie in [0, 1]; no row is filled before its round."""
        in_range("values", self._values, 0, 1)
        in_range("chosen", self._chosen, 0)
        in_range("num_rounds", self._num_rounds, int(self._seen.any(axis=1).sum()))

    def choose(self) -> Decision:
        """A plan that the window does not know, else the best index."""
        plan = self._best()
        self._chosen[plan] = round_ = int(self._chosen.max()) + 1
        return Decision(plan, 1.0, round_)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Let the newest round take the place of the oldest."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if not seen.any():
            return
        place = self._num_rounds % self._window
        self._values[place], self._seen[place] = np.where(seen, values, 0.0), seen
        self._num_rounds += 1

    def probabilities(self) -> Floats:
        """[K] one-hot on the plan that ``choose`` would play."""
        return one_hot(self._best(), self._num_plans)

    def estimates(self) -> Floats:
        """[K] mean value seen in the window; 0 where nothing was."""
        average: Floats = self._values.sum(axis=0) / np.maximum(self._seen.sum(axis=0), 1)
        return average

    def _best(self) -> int:
        counts = self._seen.sum(axis=0)
        if counts.min() == 0:
            last = np.iinfo(np.int64).max
            return int(np.where(counts > 0, last, self._chosen).argmin())
        means = self._values.sum(axis=0) / counts
        indices = ucb1_indices(means, counts.astype(np.float64), self._num_rounds, self._beta)
        return int(indices.argmax())
