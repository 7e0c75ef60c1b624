"""Copies of a policy: as many as decisions are in flight, so that none of them sees a delay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from draftwise.checks import whole
from draftwise.policies.parts.checks import check_feedback
from draftwise.protocols import Policy
from draftwise.types import Decision, Feedback, Floats


class Copies:
    """Let every decision be made by a copy of the base that is not waiting for feedback.

    Source: Joulani et al. 2013, Algorithm 1, as HedgeSpec uses it in Theorem 4 and appendix A.3:
        a blackbox reduction for bounded delays that need not be constant.
    Update: choose with the first copy that has no decision in flight, a new one if all have; all
        feedback of a decision goes to the copy that made it, and the last of it frees the copy (in
        the token-level game a decision has one feedback for each token, ``Feedback.more``).
    Differs: feedback of a decision that no copy made (a replay) goes to the first copy.
    Feedback: what the base takes, in any order as far as the decisions are different copies'.
    State: the copies' states; which copy made each decision in flight, by round.
    Cost: the base's, and memory for as many copies as decisions are ever in flight at once.
    Errors: what the base raises.

    >>> from draftwise.registry import make_policy
    >>> policy = make_policy("copies:ucb1", num_plans=3)
    >>> [policy.choose().plan for _ in range(2)], policy.num_copies
    ([0, 0], 2)
    """

    def __init__(
        self, num_plans: int, rng: np.random.Generator,
        make_base: Callable[[str, np.random.Generator], Policy], base: str = "normalhedge",
    ) -> None:  # fmt: skip
        self._num_plans, self._rng = num_plans, rng
        self._make_base, self._spec = make_base, base
        self._num_chosen = 0
        self._maker: dict[int, int] = {}
        self._copies = [self._new()]

    @property
    def num_copies(self) -> int:
        """How many copies were ever needed."""
        return len(self._copies)

    def choose(self) -> Decision:
        """What an idle copy chooses."""
        index = self._idle()
        if index == len(self._copies):
            self._copies.append(self._new())
        made = self._copies[index].choose()
        self._num_chosen += 1
        self._maker[self._num_chosen] = index
        return Decision(made.plan, made.prob, self._num_chosen)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Tell the copy that made the decision; nothing more to come frees it."""
        check_feedback(decision, feedback, self._num_plans)
        self._copies[self._maker.get(decision.round, 0)].learn(decision, feedback)
        if not feedback.more:
            self._maker.pop(decision.round, None)

    def probabilities(self) -> Floats:
        """[K] those of the copy that would choose; of a copy yet to be made, a fresh one's."""
        index = self._idle()
        if index < len(self._copies):
            return self._copies[index].probabilities()
        fresh = self._make_base(self._spec, np.random.default_rng(0))
        return fresh.probabilities()

    def estimates(self) -> Floats:
        """[K] mean of the copies' estimates."""
        average: Floats = np.mean([each.estimates() for each in self._copies], axis=0)
        return average

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return {
            "copies": [each.state() for each in self._copies],
            "maker": [[round_, index] for round_, index in sorted(self._maker.items())],
            "num_chosen": self._num_chosen,
            "rng": self._rng.bit_generator.state,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        if set(state) != set(self.state()):
            raise ValueError(f"this state holds {sorted(state)}, but Copies needs its own fields")
        saved, making = state["copies"], state["maker"]
        if not isinstance(saved, list) or not saved:
            raise ValueError("its copies are no list: the file is damaged")
        copies = [self._make_base(self._spec, np.random.default_rng(0)) for _ in saved]
        for each, own in zip(copies, saved, strict=True):
            each.load_state(own)
        try:
            maker = {whole("round", r, 1): whole("copy", i, 0, len(copies) - 1) for r, i in making}
            num_chosen = whole("num_chosen", state["num_chosen"], 0)
            self._rng.bit_generator.state = state["rng"]
        except (TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise ValueError("what copies wait for is damaged") from error
        self._copies, self._num_chosen, self._maker = copies, num_chosen, maker

    def _idle(self) -> int:
        """The first copy with no decision in flight; the number of copies if there is none."""
        busy = set(self._maker.values())
        return next(index for index in range(len(busy) + 1) if index not in busy)

    def _new(self) -> Policy:
        return self._make_base(self._spec, np.random.default_rng(self._rng.integers(2**63)))
