"""Pure exploration: try all plans alike, drop the worse half; and commit to the one left."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from draftwise.checks import MANY, optional, scale, whole
from draftwise.policies.base import Greedy, check_feedback
from draftwise.policies.state import Fields, in_range
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


class SequentialHalving(Greedy):
    """Play all surviving plans equally often and keep the better half, until one is left.

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
        self._period = whole("period", period, 1, MANY)
        super().__init__(num_plans)
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
        decision = super().choose()
        self._phase_chosen[decision.plan] += 1
        return decision

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Count the seen values; end the phase when every survivor has its share."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        self._tally.add(values, seen)
        self._phase_counts += seen
        self._phase_sums += np.where(seen, values, 0.0)
        num_alive = int(self._alive.sum())
        share = self._period  # how often each survivor is to be seen in this phase
        if self._budget is not None:
            share = pulls_per_plan(self._budget, num_alive, self._num_plans)
        if num_alive > 1 and self._phase_counts[self._alive].min() >= share:
            means = self._phase_sums / np.maximum(self._phase_counts, 1.0)
            self._alive = better_half(means, self._alive)
            self._start_phase()

    def _best(self) -> int:
        return int(np.where(self._alive, self._phase_chosen, np.inf).argmin())

    def _start_phase(self) -> None:
        self._phase_counts: Floats = np.zeros(self._num_plans)
        self._phase_sums: Floats = np.zeros(self._num_plans)
        self._phase_chosen: Floats = np.zeros(self._num_plans)


_TOKENS = 512  # of a request of which nothing is known


def exploration_budget(c: float, num_tokens: int) -> int:
    """Rounds of exploration, ``B0 = c ln B``, at least 1.

    >>> exploration_budget(10.0, 512)
    62
    """
    return max(1, math.floor(c * math.log(num_tokens)))


class PETC(SequentialHalving):
    """Explore for ``c ln B`` rounds by Sequential Halving, then commit to the survivor.

    Source: MetaSD, Algorithm 4 and Theorem 8 (B0 = c ln B).
    Update: Algorithm 5 with budget B0; it ends with one survivor, and that is the commitment.
    Differs: (1) B0 counts rounds, the box's l counts tokens, of which a round emits one or more;
        (2) the paper leaves c open: at 4, the default, 7 drafters are tried once or twice in each
        phase, 17 rounds of a request of 200 tokens; B is the most that the request may emit, or
        ``num_tokens``, and 512 where neither is known.
    Feedback: as SequentialHalving. State: as SequentialHalving. Cost: O(K) a round.
    Errors: ValueError if c is not from 1e-6 to 1e6 or num_tokens is below 1.

    >>> policy = PETC(num_plans=2, c=1.0)
    >>> policy.choose().plan, policy.choose().plan
    (0, 1)
    """

    def __init__(
        self, num_plans: int, c: float = 4.0, num_tokens: int | None = None,
        request_tokens: int | None = None,
    ) -> None:  # fmt: skip
        own = optional(whole, "num_tokens", num_tokens, 1)
        known = [tokens for tokens in (own, request_tokens, _TOKENS) if tokens is not None]
        budget = exploration_budget(scale("c", c), known[0])
        super().__init__(num_plans, min(budget, MANY))
