"""Look-ahead: the length of the model drafter's drafts in the coming step.

A model drafter writes at the end of a step, for all requests, before the step's tokens are known.
The worth of each length is therefore a mean over recent requests and steps: after every choice,
each request contributes what each length would have been worth to it.
"""

from __future__ import annotations

import numpy as np

from draftwise.controller.acceptance import Ints, Slots, Tables
from draftwise.controller.choice import best_length, mean_surplus
from draftwise.controller.costs import StepCosts

DISCOUNT = 0.998
"""Discount of the means, for each observation."""
PROBE_EVERY = 64
"""Steps between two probes with longer drafts."""
PROBE_LONGER = 2
"""Additional tokens of a probe."""


class LookAhead:
    """The mean worth of model drafts of 0, 1, .. tokens, in expected tokens per request.

    State: means by length with the number of steps; the number of decisions.
    """

    def __init__(self, max_draft: int) -> None:
        self.means = np.zeros(max_draft + 2)
        self._num_decisions = 0

    def learn(
        self, slots: Ints, known: Slots, tables: Tables, joint: float, branches: bool, price: float,
        longest: int,
    ) -> None:  # fmt: skip
        """Add the worth of each length at the latest choice, at its price of a token."""
        mean_surplus(
            slots, known, tables.after, joint, branches, price, DISCOUNT, self.means,
            self.lengths(longest),
        )  # fmt: skip

    def lengths(self, longest: int) -> int:
        """The longest draft to consider if the longest one measured so far is ``longest``."""
        return min(max(1, 2 * longest), len(self.means) - 2)

    def best(self, num_requests: int, rate: float, costs: StepCosts) -> int:
        """The length with the largest worth less the drafter's seconds."""
        fixed_s, each_s = costs.draft_price
        longest = self.lengths(costs.longest)
        return int(best_length(self.means, longest, num_requests, rate, fixed_s, each_s))

    def probe(self, length: int, costs: StepCosts) -> int:
        """``length``, or every PROBE_EVERY decisions a longer one, to price and score it."""
        self._num_decisions += 1
        if length and self._num_decisions % PROBE_EVERY == 0:
            return min(length + PROBE_LONGER, self.lengths(costs.longest))
        return length
