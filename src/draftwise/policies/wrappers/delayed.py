"""Queued feedback: any policy learns late, in order, and knows nothing of the delay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from draftwise.checks import whole
from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.state import dump, load
from draftwise.policies.wrappers.in_flight import Told, freeze, told_list, told_to_json
from draftwise.protocols import Policy
from draftwise.types import Decision, Feedback, Floats

_FIELDS = {"base": "_base"}
_LONGEST = 10_000
"""Feedbacks that the queue holds at most."""


class Delayed:
    """Hold feedback back while others come in; then feed it to the base, first in, first out.

    Source: HedgeSpec, Algorithm 1 (QFI-D, after Joulani et al. 2013, Algorithm 2): one queue of
        feedback, emptied into BASE before the next prediction.
    Update: the queue holds ``rounds`` feedbacks; one more, and the base learns the oldest.
    Differs: the delay is made here, on purpose (simulations, tests of robustness); in the engine it
        arises in the panoramic feedback, whose queue this is.
    Feedback: what the base takes.
    State: the base's; the queue, oldest first.
    Cost: the base's. Errors: ValueError if rounds is not from 0 to 10,000; what the base raises.

    >>> from draftwise.registry import make_policy
    >>> policy = make_policy("delayed:base=ucb1,rounds=1", num_plans=2)
    >>> for value in (0.75, 0.25):
    ...     policy.learn(policy.choose(), Feedback(np.full(2, value), np.ones(2, dtype=bool)))
    ...     print(policy.estimates().tolist())
    [0.0, 0.0]
    [0.75, 0.75]
    """

    def __init__(
        self, num_plans: int, rng: np.random.Generator,
        make_base: Callable[[str, np.random.Generator], Policy], base: str = "normalhedge",
        rounds: int = 0,
    ) -> None:  # fmt: skip
        self._num_plans, self._rounds = num_plans, whole("rounds", rounds, 0, _LONGEST)
        self._base = make_base(base, rng)
        self._queue: list[Told] = []

    def choose(self) -> Decision:
        """What the base chooses."""
        return self._base.choose()

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Queue the feedback; the base learns what has waited long enough."""
        check_feedback(decision, feedback, self._num_plans)
        self._queue.append(freeze(decision, feedback))
        while len(self._queue) > self._rounds:
            self._base.learn(*self._queue.pop(0))

    def probabilities(self) -> Floats:
        """[K] the base's, with what it has learned so far."""
        return self._base.probabilities()

    def estimates(self) -> Floats:
        """[K] the base's."""
        return self._base.estimates()

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, _FIELDS) | {"queue": [told_to_json(told) for told in self._queue]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        rest = dict(state)
        queue = told_list(rest.pop("queue", []), self._num_plans)
        load(self, _FIELDS, rest)
        self._queue = queue
