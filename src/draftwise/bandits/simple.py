"""Policies that do not learn while they run, and those that only explore before they commit."""

from __future__ import annotations

import math

import numpy as np

from draftwise.bandits.base import IndexPolicy, SampledPolicy, Tally, one_hot
from draftwise.checks import MANY, optional, scale, whole
from draftwise.types import Bools, Decision, Feedback, Floats, check_feedback


class FixedPlan:
    """Always play one plan.

    Source: the static baseline of all five papers (Leviathan et al. 2023). Feedback is validated
    and ignored. State: the number of rounds. Errors: ValueError if ``plan`` is not in 0 .. K-1.
    """

    def __init__(self, num_plans: int, plan: int = 0) -> None:
        if not 0 <= whole("plan", plan) < num_plans:
            raise ValueError(f"plan {plan} is not one of the {num_plans} plans 0..{num_plans - 1}")
        self._plan, self._num_plans, self._round = plan, num_plans, 0

    def choose(self) -> Decision:
        self._round += 1
        return Decision(self._plan, 1.0, self._round)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        check_feedback(decision, feedback, self._num_plans)

    def probabilities(self) -> Floats:
        return one_hot(self._plan, self._num_plans)

    def estimates(self) -> Floats:
        return self.probabilities()


class Random(SampledPolicy):
    """Play a plan drawn uniformly at random; means are tracked for display only.

    Source: MetaSD (Kim et al.), tables 3 and 4, the baseline ``Rand`` (uniformly random).
    """

    def choose(self) -> Decision:
        plan = int(self._rng.integers(self._num_plans))
        return Decision(plan, 1.0 / self._num_plans, self._tally.choose(plan))

    def probabilities(self) -> Floats:
        return np.full(self._num_plans, 1.0 / self._num_plans)


class SequentialHalving(IndexPolicy):
    """Play all surviving plans equally often and keep the better half, until one is left.

    Source: MetaSD, Algorithm 5 (Karnin et al. 2013). Its experiments set the "period" to 1
        (appendix F.4): one round for each plan in a phase, which is the default here; ``budget``
        sets n_t as in the pseudocode, floor(T / (|S| floor(log2 K))), except for (2).
    Update: once every survivor has n_t observations in this phase, keep the best ceil(|S| / 2).
    Differs: (1) lines 5 and 6 as printed sort ascending and keep the worse half; (2) floor(log2 K)
        phases, as printed, leave more than one survivor unless K is a power of 2: like the cited
        work, this uses ceil, for the phases and in n_t; (3) means instead of sums, which rank plans
        differently only with delayed or richer feedback.
    Feedback: its order matters only at the end of a phase. budget, period: 1 to 100,000 rounds.
    State: survivors bool[K]; a ``Tally`` of the phase, and one of all rounds.
    """

    def __init__(self, num_plans: int, budget: int | None = None, period: int = 1) -> None:
        self._budget = optional(whole, "budget", budget, 1, MANY)
        self._period = whole("period", period, 1, MANY)
        super().__init__(num_plans)
        self._alive: Bools = np.ones(num_plans, dtype=np.bool_)
        self._phase = Tally(num_plans)

    def choose(self) -> Decision:
        decision = super().choose()
        self._phase.choose(decision.plan)
        return decision

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        super().learn(decision, feedback)
        self._phase.add(feedback.values, feedback.seen)
        num_alive, share = int(self._alive.sum()), self._period
        if self._budget is not None:
            num_phases = max(1, math.ceil(math.log2(self._num_plans)))
            share = max(1, self._budget // (num_alive * num_phases))
        if num_alive > 1 and self._phase.counts[self._alive].min() >= share:
            ranked = np.where(self._alive, -self._phase.means(), np.inf).argsort(kind="stable")
            self._alive = np.zeros(self._num_plans, dtype=np.bool_)
            self._alive[ranked[: math.ceil(num_alive / 2)]] = True  # ties go to the first
            self._phase = Tally(self._num_plans)

    def best(self) -> int:
        return int(np.where(self._alive, self._phase.chosen, np.inf).argmin())


_TOKENS = 512  # assumed length of a request without a limit


class PETC(SequentialHalving):
    """Explore for ``c ln B`` rounds by Sequential Halving, then commit to the survivor.

    Source: MetaSD, Algorithm 4 and Theorem 8 (B0 = c ln B).
    Update: Algorithm 5 with budget B0, then its only survivor.
    Differs: (1) B0 counts rounds, while the pseudocode's l counts tokens, of which a round emits
        one or more; (2) the paper leaves c open: with the default, 4, seven drafters are explored
        for 17 rounds of a request of 200 tokens. B is ``num_tokens``, else the request's maximum
        number of tokens, else 512. c: 1e-6 to 1e6; num_tokens: at least 1.
    """

    def __init__(
        self, num_plans: int, c: float = 4.0, num_tokens: int | None = None,
        request_tokens: int | None = None,
    ) -> None:  # fmt: skip
        known = _TOKENS if request_tokens is None else request_tokens
        own = known if num_tokens is None else whole("num_tokens", num_tokens, 1)
        budget = math.floor(scale("c", c) * math.log(own))
        super().__init__(num_plans, min(max(budget, 1), MANY))
