"""Plans ranked by the values they were seen with: what is left where there is no evidence."""

from __future__ import annotations

import numpy as np

from draftwise.policies.goodput.acceptance import PRIOR_WEIGHT
from draftwise.policies.state import Kept
from draftwise.types import Bools, Floats


class SeenValues(Kept):
    """Discounted means of the values that plans were seen with, shrunk to a prior.

    State: discounted sums and counts float64[K].
    """

    KEPT = ("_sums", "_counts")

    def __init__(self, num_plans: int, prior: float, discount: float) -> None:
        self._prior, self._discount = prior, discount
        self._sums: Floats = np.zeros(num_plans)
        self._counts: Floats = np.zeros(num_plans)

    def add(self, values: Floats, seen: Bools) -> None:
        """The values [K] of those that were seen [K]."""
        self._sums[seen] = self._discount * self._sums[seen] + values[seen]
        self._counts[seen] = self._discount * self._counts[seen] + 1.0

    def means(self) -> Floats:
        """[K] each plan's mean."""
        means: Floats = (self._sums + PRIOR_WEIGHT * self._prior) / (self._counts + PRIOR_WEIGHT)
        return means
