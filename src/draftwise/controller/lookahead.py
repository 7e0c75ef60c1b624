"""Look ahead: how many tokens the model drafter is to write during the coming step.

A model drafter writes at the end of a step, for all requests, before it is known what the step
emitted. What a draft of each length is worth is therefore a mean over the latest requests and
steps: after every choice each request says what each length would have been worth to it.
"""

from __future__ import annotations

import numpy as np

from draftwise.controller.acceptance import Ints, Slots, Tables
from draftwise.controller.choice import best_length, mean_surplus
from draftwise.controller.costs import StepCosts

DISCOUNT = 0.998
"""Of what was learnt, for each observation."""
PROBE_EVERY = 64
"""Steps between two in which the model writes longer drafts than seem best."""
PROBE_LONGER = 2
"""Tokens by which they are longer."""


class LookAhead:
    """What a draft of 0, 1, .. tokens by the model is worth, in expected tokens a request.

    State: means by length and the number of steps; the number of decisions.
    """

    def __init__(self, max_draft: int) -> None:
        self.means = np.zeros(max_draft + 2)
        self._num_decisions = 0

    def learn(
        self, slots: Ints, known: Slots, tables: Tables, joint: float, branches: bool, price: float,
        longest: int,
    ) -> None:  # fmt: skip
        """What each length would have been worth at the latest choice, at its price of a token."""
        mean_surplus(
            slots, known, tables.after, joint, branches, price, DISCOUNT, self.means,
            self.lengths(longest),
        )  # fmt: skip

    def lengths(self, longest: int) -> int:
        """The longest draft that is considered, when the longest one so far was ``longest``."""
        return min(max(1, 2 * longest), len(self.means) - 2)

    def best(self, num_requests: int, rate: float, costs: StepCosts) -> int:
        """The length with the largest worth, less the seconds of the drafter."""
        fixed_s, each_s = costs.draft_price
        longest = self.lengths(costs.longest)
        return int(best_length(self.means, longest, num_requests, rate, fixed_s, each_s))

    def probe(self, length: int, costs: StepCosts) -> int:
        """Now and then a longer one: what was never drafted cannot be priced or scored."""
        self._num_decisions += 1
        if length and self._num_decisions % PROBE_EVERY == 0:
            return min(length + PROBE_LONGER, self.lengths(costs.longest))
        return length
