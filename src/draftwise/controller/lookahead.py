"""Look ahead: how many tokens the model drafter is to write during the coming step.

A model drafter writes at the end of a step, for all requests, before it is known what the step
emitted. What a draft of each length will be worth is therefore learnt: at every step, what it
would have been worth to each request, by the class that the request had one step earlier.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.acceptance import NUM_MATCHES
from draftwise.controller.compiled import compiled, warms_up

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DISCOUNT = 0.998
"""Of what was learnt of a class, for each observation."""
CLASS_WEIGHT = 5.0
"""Observations that the mean of all classes is worth in each class."""
AFTER_DISCOUNT = 0.99
"""Of the mean survival of retrieval after the model's draft, for each observation."""


@compiled
def _learn(
    slots: Ints, earlier: Ints, now: Ints, worth: Floats, sums: Floats, nums: Floats
) -> None:
    for i in range(len(slots)):
        group = earlier[slots[i]]
        if group >= 0:
            nums[group] = nums[group] * DISCOUNT + 1.0
            for k in range(worth.shape[1]):
                sums[group, k] = sums[group, k] * DISCOUNT + worth[i, k]
        earlier[slots[i]] = now[i]


class LookAhead:
    """State: worth of each length by class; mean survival after each length by class."""

    def __init__(self, max_draft: int) -> None:
        self._sums = np.zeros((NUM_MATCHES, max_draft + 1))
        self._nums = np.zeros(NUM_MATCHES)
        self.after = np.full((max_draft, NUM_MATCHES, max_draft), 0.05)
        self._is_seen = np.zeros(max_draft, bool)
        self.earlier = np.zeros(0, np.int64)

    def resize(self, num_slots: int) -> None:
        """Make room for so many slots."""
        earlier = np.full(num_slots, -1, np.int64)
        earlier[: len(self.earlier)] = self.earlier
        self.earlier = earlier

    def learn_after(self, groups: Ints, survival: Floats, num_drafted: int) -> None:
        """Requests, [n], whose num_drafted tokens were all accepted; survival after: [n, length]."""
        if not len(groups):
            return
        k = num_drafted - 1
        if not self._is_seen[k]:
            seen = np.flatnonzero(self._is_seen)
            if len(seen):
                self.after[k] = self.after[seen[np.abs(seen - k).argmin()]]
            self._is_seen[k] = True
        for group in range(NUM_MATCHES):
            rows = groups == group
            num = int(rows.sum())
            if num:
                keep = AFTER_DISCOUNT**num
                self.after[k, group] = keep * self.after[k, group] + (1 - keep) * survival[
                    rows
                ].mean(axis=0)
        if len(seen := np.flatnonzero(self._is_seen)) < len(self._is_seen):
            for other in np.flatnonzero(~self._is_seen):
                self.after[other] = self.after[seen[np.abs(seen - other).argmin()]]

    def learn(self, slots: Ints, groups: Ints, worth: Floats) -> None:
        """worth: [rows, lengths + 1] of requests that are in these classes now."""
        _learn(slots, self.earlier, groups, worth, self._sums, self._nums)

    def worth(self, groups: Ints) -> Floats:
        """[lengths + 1] expected worth of each length for requests of these classes."""
        total = self._sums.sum(axis=0) / max(self._nums.sum(), 1e-9)
        means = (self._sums + CLASS_WEIGHT * total) / (self._nums + CLASS_WEIGHT)[:, None]
        counts = np.bincount(groups, minlength=NUM_MATCHES)
        worth: Floats = counts @ means
        return worth


@warms_up
def _warm_up() -> None:
    one = np.zeros(1, np.int64)
    _learn(one, one, one, np.zeros((1, 2)), np.zeros((1, 2)), np.zeros(1))
