"""Batched and skipped updates: after a warm-up, any policy learns now and then, several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from draftwise.checks import MANY, whole
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.state import dump, load
from draftwise.policies.wrappers.in_flight import Told, freeze, told_list, told_to_json
from draftwise.protocols import Policy
from draftwise.types import Decision, Feedback, Floats

_LARGEST = 10_000
"""Rounds of the largest batch, whose feedback waits in memory."""

_FIELDS = {
    "base": "_base",
    "num_chosen": "_num_chosen",
    "num_told": "_num_told",
    "last_batch": "_last_batch",
}


class Batched:
    """Learn everything for some rounds, then one feedback in ``skip``, ``batch`` rounds at a time.

    Source: HedgeSpec, appendix B.5 ("skipping updates"): a warm-up of 6 rounds with full updates,
        then feedback in batches of 12 rounds and one update per 6 tokens.
    Update: in the first ``warmup`` rounds, or of the first ``warmup`` feedbacks, all is learned at
        once. After that one feedback of every ``skip`` is kept, the others are dropped, and what
        was kept is learned, in order, as soon as ``batch`` choices or more have gone by since the
        last time (rows that share the policy choose several times in a round).
    Differs: the paper gives numbers and no box. Its unit of skipping is a token, which is one
        feedback in the token-level game (``panoramic:per_token=true``); with one feedback a round
        it is a round. To spare the SCORING as well, use ``panoramic:every=12,warmup=6``.
    Feedback: what the base takes.
    State: the base's; what was kept and not yet learned; rounds chosen; feedbacks told.
    Cost: the base's, ``skip`` times less often.
    Errors: ValueError if warmup is not from 0 to 100,000, skip not from 1 to that, or batch
        not from 1 to 10,000; what the base raises.

    >>> from draftwise.registry import make_policy
    >>> policy = make_policy("batched:base=ucb1,warmup=0,batch=2,skip=1", num_plans=1)
    >>> means = []
    >>> for _ in range(3):
    ...     policy.learn(policy.choose(), Feedback(np.ones(1), np.ones(1, dtype=bool)))
    ...     means.append(float(policy.estimates()[0]))
    >>> means
    [0.0, 1.0, 1.0]
    """

    def __init__(
        self, num_plans: int, rng: np.random.Generator,
        make_base: Callable[[str, np.random.Generator], Policy], base: str = "normalhedge",
        warmup: int = 6, batch: int = 12, skip: int = 6,
    ) -> None:  # fmt: skip
        self._warmup, self._skip = whole("warmup", warmup, 0, MANY), whole("skip", skip, 1, MANY)
        self._batch, self._num_plans = whole("batch", batch, 1, _LARGEST), num_plans
        self._base = make_base(base, rng)
        self._num_chosen, self._num_told, self._last_batch = 0, 0, self._warmup
        self._kept: list[Told] = []

    def choose(self) -> Decision:
        """What the base chooses."""
        self._num_chosen += 1
        return self._base.choose()

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Keep or drop the feedback; pass on what was kept when its batch is full."""
        check_feedback(decision, feedback, self._num_plans)
        self._num_told += 1
        if min(self._num_chosen, self._num_told) <= self._warmup:
            self._base.learn(decision, feedback)
            return
        if (self._num_told - self._warmup - 1) % self._skip == 0:
            self._kept.append(freeze(decision, feedback))
        if self._num_chosen - self._last_batch >= self._batch:
            for told in self._kept:
                self._base.learn(*told)
            self._kept, self._last_batch = [], self._num_chosen

    def probabilities(self) -> Floats:
        """[K] the base's."""
        return self._base.probabilities()

    def estimates(self) -> Floats:
        """[K] the base's."""
        return self._base.estimates()

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, _FIELDS) | {"kept": [told_to_json(told) for told in self._kept]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        rest = dict(state)
        kept = told_list(rest.pop("kept", []), self._num_plans)
        load(self, _FIELDS, rest)
        self._kept = kept
