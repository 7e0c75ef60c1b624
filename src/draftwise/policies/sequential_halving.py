"""Sequential Halving: try all plans alike, drop the worse half, and so on until one is left."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from draftwise.checks import MANY, optional, whole
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import Fields, Kept, in_range
from draftwise.policies.parts.tally import Tally
from draftwise.types import Bools, Decision, Feedback, Floats


def pulls_per_plan(budget: int, num_alive: int, num_plans: int) -> int:
    """Rounds for each surviving plan in one phase: ``floor(T / (|S| ceil(log2 K)))``, at least 1.

    >>> [pulls_per_plan(64, alive, 4) for alive in (4, 2)]
    [8, 16]
    """
    return max(1, budget // (num_alive * max(1, math.ceil(math.log2(num_plans)))))


def better_half(means: Floats, alive: Bools) -> Bools:
    """[K] the ``ceil(|S| / 2)`` best of the surviving plans (ties go to the first).

    >>> better_half(np.array([0.1, 0.9, 0.5, 0.7]), np.array([True, True, True, False])).tolist()
    [False, True, True, False]
    """
    ranked = np.argsort(np.where(alive, -means, np.inf), kind="stable")
    kept = np.zeros(len(means), dtype=np.bool_)
    kept[ranked[: math.ceil(int(alive.sum()) / 2)]] = True
    return kept


class SequentialHalving(Kept):
    """Play all surviving plans alike, keep the better half, and end with one for ever.

    Source: MetaSD, Algorithm 5 (Karnin et al. 2013). Its experiments set the "period" to 1
        (appendix F.4): one round for each plan in a phase, which is the default here; ``budget``
        gives n_t as the box does, floor(T / (|S| floor(log2 K))), but for (2).
    Update: when every survivor was seen n_t times in this phase, keep the ceil(|S| / 2) with the
        highest mean of the phase.
    Differs: (1) lines 5 and 6 as printed sort ascending and keep the worse half; (2) as printed,
        with floor(log2 K) phases, more than one survives unless K is a power of 2: ceil, there and
        in n_t, as in the cited work; (3) means instead of sums, which differ only for late or
        richer feedback.
    Feedback: bandit or richer; the order matters where a phase ends.
    State: survivors bool[K]; the phase's counts, sums and choices float64[K]; a Tally of all.
    Cost: O(K) a round. Errors: ValueError if budget or period is not from 1 to 100,000.

    >>> policy = SequentialHalving(num_plans=2)
    >>> for value in (0.2, 0.8):
    ...     plan = policy.choose().plan
    ...     policy.learn(Decision(plan, 1.0, 1), Feedback(np.full(2, value), np.arange(2) == plan))
    >>> [policy.choose().plan for _ in range(3)]
    [1, 1, 1]
    """

    KEPT: ClassVar[Fields] = {
        "alive": "_alive",
        "phase_counts": "_phase_counts",
        "phase_sums": "_phase_sums",
        "phase_chosen": "_phase_chosen",
        "tally": "_tally",
    }

    def __init__(self, num_plans: int, budget: int | None = None, period: int = 1) -> None:
        self._budget = optional(whole, "budget", budget, 1, MANY)
        self._period, self._num_plans = whole("period", period, 1, MANY), num_plans
        self._tally = Tally(num_plans)
        self._alive: Bools = np.ones(num_plans, dtype=np.bool_)
        self._start_phase()

    def check_memory(self) -> None:
        """Some plan survives; a phase is part of all rounds."""
        in_range("alive", self._alive.sum(), 1)
        in_range("phase_counts", self._phase_counts, 0, self._tally.counts)
        in_range("phase_sums", self._phase_sums, 0, self._phase_counts * (1 + 1e-9))
        in_range("phase_chosen", self._phase_chosen, 0)

    def choose(self) -> Decision:
        """The survivor that this phase has played least."""
        plan = self._next()
        self._phase_chosen[plan] += 1
        return Decision(plan, 1.0, self._tally.choose(plan))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Count the seen values; end the phase when every survivor has its share."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        self._tally.add(values, seen)
        self._phase_counts += seen
        self._phase_sums += np.where(seen, values, 0.0)
        num_alive = int(self._alive.sum())
        if num_alive > 1 and self._phase_counts[self._alive].min() >= self._share(num_alive):
            means = self._phase_sums / np.maximum(self._phase_counts, 1.0)
            self._alive = better_half(means, self._alive)
            self._start_phase()

    def probabilities(self) -> Floats:
        """[K] one-hot on the plan that ``choose`` would play."""
        return one_hot(self._next(), self._num_plans)

    def estimates(self) -> Floats:
        """[K] mean value seen, in all phases."""
        return self._tally.means()

    def _next(self) -> int:
        return int(np.where(self._alive, self._phase_chosen, np.inf).argmin())

    def _share(self, num_alive: int) -> int:
        """How often each survivor is to be seen in this phase."""
        if self._budget is None:
            return self._period
        return pulls_per_plan(self._budget, num_alive, self._num_plans)

    def _start_phase(self) -> None:
        self._phase_counts: Floats = np.zeros(self._num_plans)
        self._phase_sums: Floats = np.zeros(self._num_plans)
        self._phase_chosen: Floats = np.zeros(self._num_plans)
