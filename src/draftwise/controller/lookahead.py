"""Look ahead: how many tokens the model drafter is to write during the coming step.

A model drafter writes at the end of a step, for all requests, before it is known what the step
emitted. What a draft of each length is worth is therefore a mean over the latest requests and
steps: at every step each request says what each length would have been worth to it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.acceptance import NUM_MATCHES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DISCOUNT = 0.998
"""Of what was learnt, for each observation."""
AFTER_DISCOUNT = 0.99
"""Of the mean survival of retrieval after the model's draft, for each observation."""
AFTER_PRIOR = 0.05
"""Survival of retrieval after a draft, before any was seen."""


class LookAhead:
    """What a draft of 0, 1, .. tokens by the model is worth, in expected tokens a request.

    State: ``after`` [lengths, buckets of match, length], mean survival of retrieval after accepted
    drafts of each length, by the match that the text had before; lengths that were never drafted
    take the nearest one that was. ``worth`` [lengths + 1].
    """

    def __init__(self, max_draft: int) -> None:
        self.after = np.full((max_draft, NUM_MATCHES, max_draft), AFTER_PRIOR)
        self._is_seen = np.zeros(max_draft, bool)
        self._sums = np.zeros(max_draft + 1)
        self._num = 0.0

    def learn_after(self, groups: Ints, survival: Floats, num_drafted: int) -> None:
        """Requests of [n] buckets whose num_drafted tokens were accepted; survival: [n, length]."""
        k = num_drafted - 1
        self._is_seen[k] = True
        for group in np.unique(groups):
            rows = groups == group
            keep = AFTER_DISCOUNT ** int(rows.sum())
            mean = survival[rows].mean(axis=0)
            self.after[k, group] = keep * self.after[k, group] + (1 - keep) * mean
        seen = np.flatnonzero(self._is_seen)
        for other in np.flatnonzero(~self._is_seen):
            self.after[other] = self.after[seen[np.abs(seen - other).argmin()]]

    def learn(self, worth: Floats) -> None:
        """What each length would have been worth now: [rows, lengths + 1]."""
        keep = DISCOUNT ** len(worth)
        self._sums = keep * self._sums + (1 - keep) * worth.mean(axis=0)
        self._num = keep * self._num + (1 - keep)

    @property
    def worth(self) -> Floats:
        """[lengths + 1] expected tokens that a draft adds for one request, less their price."""
        return self._sums / max(self._num, 1e-9)
