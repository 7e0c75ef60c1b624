"""Policies that wrap a policy: they change when it learns, or which requests share it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from draftwise.checks import MANY, whole
from draftwise.protocols import Policy
from draftwise.types import Decision, Feedback, Floats, check_feedback

Observation = tuple[Decision, Feedback]

MakeBase = Callable[..., Policy]
"""``registry.make_policy`` for the same plans and request: takes a spec and a ``seed``."""

_MOST_WAITING = 10_000  # maximum feedbacks in a queue, and rounds of a batch


def own_copy(decision: Decision, feedback: Feedback, num_plans: int) -> Observation:
    """Checked feedback with copies of its arrays, which the caller may reuse."""
    values, seen = check_feedback(decision, feedback, num_plans)
    return decision, replace(feedback, values=values.copy(), seen=seen.copy())


class Wrapper:
    """Plays its base policy's choices; feedback, state, cost and errors are those of the base."""

    def __init__(self, base: Policy) -> None:
        self._base = base

    def choose(self) -> Decision:
        return self._base.choose()

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        self._base.learn(decision, feedback)

    def probabilities(self) -> Floats:
        return self._base.probabilities()

    def estimates(self) -> Floats:
        return self._base.estimates()


class OnePlan(Wrapper):
    """Choose once a round, for all rows that share this policy; learn from each of them.

    Source: BanditSpec, section 6.2: one speculation length, as all rows wait for the longest draft.
    Update: the base chooses once; every row's feedback on that choice goes to the base, in order.
    Differs: the paper rewards the batch's throughput once a round; here each row is rewarded, so
        the base learns once per row and round, from values with the same mean.
    """

    def __init__(
        self, rng: np.random.Generator, make_base: MakeBase, base: str = "ucbspec"
    ) -> None:
        super().__init__(make_base(base, seed=rng))
        self._made: Decision | None = None

    def choose(self) -> Decision:
        if self._made is None:
            self._made = self._base.choose()
        return self._made

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        super().learn(decision, feedback)
        self._made = None


class Delayed(Wrapper):
    """Hold feedback back while others come in; then feed it to the base, first in, first out.

    Source: HedgeSpec, Algorithm 1 (QFI-D, after Joulani et al. 2013, Algorithm 2): one queue of
        feedback, emptied into BASE before the next prediction.
    Update: the queue holds ``rounds`` (0 to 10,000) feedbacks; the base learns those that leave it.
    Differs: the delay is artificial (for simulations and tests of robustness); in the engine it
        arises in panoramic feedback, which has the same queue.
    State: also the queue, oldest first.
    """

    def __init__(
        self, num_plans: int, rng: np.random.Generator, make_base: MakeBase,
        base: str = "normalhedge", rounds: int = 0,
    ) -> None:  # fmt: skip
        self._rounds = whole("rounds", rounds, 0, _MOST_WAITING)
        super().__init__(make_base(base, seed=rng))
        self._num_plans, self._queue = num_plans, deque[Observation]()

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        self._queue.append(own_copy(decision, feedback, self._num_plans))
        while len(self._queue) > self._rounds:
            self._base.learn(*self._queue.popleft())


class Batched(Wrapper):
    """Learn everything for some rounds, then one feedback in ``skip``, ``batch`` rounds at a time.

    Source: HedgeSpec, appendix B.5 ("skipping updates"): a warm-up of 6 rounds with full updates,
        then feedback in batches of 12 rounds and one update per 6 tokens.
    Update: until both more than ``warmup`` rounds and more than ``warmup`` feedbacks have passed,
        everything is learned at once. After that one feedback in ``skip`` is kept, the others are
        dropped, and the kept ones are learned, in order, once at least ``batch`` choices have
        passed since the last batch (rows that share the policy choose several times in a round).
    Differs: the paper gives numbers but no pseudocode. Its unit of skipping is a token, which is
        one feedback in the token-level game (``panoramic:per_token=true``); with one feedback a
        round it is a round. To skip the SCORING as well, use ``panoramic:every=12,warmup=6``.
    State: also the kept feedback, and the numbers of rounds chosen and of feedbacks.
    Ranges: warmup 0 to 100,000, skip 1 to 100,000, batch 1 to 10,000.
    """

    def __init__(
        self, num_plans: int, rng: np.random.Generator, make_base: MakeBase,
        base: str = "normalhedge", warmup: int = 6, batch: int = 12, skip: int = 6,
    ) -> None:  # fmt: skip
        self._warmup, self._skip = whole("warmup", warmup, 0, MANY), whole("skip", skip, 1, MANY)
        self._batch = whole("batch", batch, 1, _MOST_WAITING)
        super().__init__(make_base(base, seed=rng))
        self._num_plans = num_plans
        self._num_chosen, self._num_told, self._last_batch = 0, 0, self._warmup
        self._kept: list[Observation] = []

    def choose(self) -> Decision:
        self._num_chosen += 1
        return self._base.choose()

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        check_feedback(decision, feedback, self._num_plans)
        self._num_told += 1
        if min(self._num_chosen, self._num_told) <= self._warmup:
            self._base.learn(decision, feedback)
            return
        if (self._num_told - self._warmup - 1) % self._skip == 0:
            self._kept.append(own_copy(decision, feedback, self._num_plans))
        if self._num_chosen - self._last_batch >= self._batch:
            for told in self._kept:
                self._base.learn(*told)
            self._kept.clear()
            self._last_batch = self._num_chosen


class Copies:
    """Let every decision be made by a copy of the base that is not waiting for feedback.

    Source: Joulani et al. 2013, Algorithm 1, as HedgeSpec uses it in Theorem 4 and appendix A.3: a
        blackbox reduction for bounded delays that need not be constant.
    Update: choose with the first copy without a decision in flight, or with a new one; all feedback
        of a decision goes to the copy that made it, and the last feedback frees the copy (in the
        token-level game a decision has one feedback for each token, ``Feedback.more``).
    Differs: feedback of a decision that no copy made (a replay) goes to the first copy.
    State: as many copies as decisions were ever in flight at once; those in flight, by round.
    """

    def __init__(
        self, rng: np.random.Generator, make_base: MakeBase, base: str = "normalhedge"
    ) -> None:
        self._rng, self._make_base, self._spec = rng, make_base, base
        self._num_chosen = 0
        self._maker: dict[int, int] = {}
        self._copies = [self._new()]

    def choose(self) -> Decision:
        index = self._idle()
        if index == len(self._copies):
            self._copies.append(self._new())
        made = self._copies[index].choose()
        self._num_chosen += 1
        self._maker[self._num_chosen] = index
        return Decision(made.plan, made.prob, self._num_chosen)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        self._copies[self._maker.get(decision.round, 0)].learn(decision, feedback)
        if not feedback.more:
            self._maker.pop(decision.round, None)

    def probabilities(self) -> Floats:
        """[K] probabilities of the copy that would choose next, which may be a new one."""
        index = self._idle()
        if index < len(self._copies):
            return self._copies[index].probabilities()
        return self._make_base(self._spec).probabilities()

    def estimates(self) -> Floats:
        """[K] mean of the copies' estimates."""
        average: Floats = np.mean([each.estimates() for each in self._copies], axis=0)
        return average

    def _idle(self) -> int:
        """The first copy with no decision in flight; the number of copies if there is none."""
        busy = set(self._maker.values())
        return next(index for index in range(len(busy) + 1) if index not in busy)

    def _new(self) -> Policy:
        return self._make_base(self._spec, seed=int(self._rng.integers(2**63)))
