"""One plan for a whole batch: rows that share a policy play the same plan in each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.state import Fields, Kept
from draftwise.protocols import Policy
from draftwise.types import Costs, Decision, Feedback, Floats


class OnePlan(Kept):
    """Choose once a round, for all rows that share this policy; learn from each of them.

    Source: BanditSpec, section 6.2: the speculation length is the batch's, as all rows wait for the
        longest draft.
    Update: the base chooses once; every row's feedback on that choice goes to the base, in order.
    Differs: the paper rewards the batch's throughput once a round; here every row's own counts, so
        the base learns as often a round as there are rows, from the same mean.
    Feedback: what the base takes. State: the base's. Cost: the base's, less for larger batches.
    Errors: what the base raises.

    >>> from draftwise.registry import make_policy
    >>> policy = make_policy("one-plan:base=ucb1", num_plans=3)
    >>> [decision.plan for decision in OnePlan.choose_together([policy] * 4)]
    [0, 0, 0, 0]
    """

    KEPT: ClassVar[Fields] = {"base": "_base"}

    def __init__(
        self, num_plans: int, rng: np.random.Generator,
        make_base: Callable[[str, np.random.Generator], Policy], base: str = "ucbspec",
    ) -> None:  # fmt: skip
        self._num_plans, self._base = num_plans, make_base(base, rng)

    @staticmethod
    def choose_together(policies: Sequence[OnePlan], costs: Costs | None = None) -> list[Decision]:
        """One decision for each policy, at every row that has it; costs are not looked at."""
        made: dict[int, Decision] = {}
        for policy in policies:
            if id(policy) not in made:
                made[id(policy)] = policy.choose()
        return [made[id(policy)] for policy in policies]

    def choose(self) -> Decision:
        """What the base chooses."""
        return self._base.choose()

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Tell the base."""
        check_feedback(decision, feedback, self._num_plans)
        self._base.learn(decision, feedback)

    def probabilities(self) -> Floats:
        """[K] the base's."""
        return self._base.probabilities()

    def estimates(self) -> Floats:
        """[K] the base's."""
        return self._base.estimates()
