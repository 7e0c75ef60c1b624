"""Closed batches: requests that begin together and are not replaced when they end.

In open traffic a new request replaces each one that ends, so every token saves its share of a step.
A closed batch (offline generation, the parallel calls of an agent) runs until its slowest request
ends; tokens of the other requests only make steps narrower. A batch is predicted to be closed if
the previous one was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from draftwise.types import Floats, Ints

TOGETHER = 32
"""Maximum tokens that a request of a closed batch has emitted when the last one begins."""
CREDIT = 32.0
"""Initial balance in plain steps, times the number of requests: with more requests, drafts help the
slowest one less often."""
SKIPPED = 8, 256
"""Closed batches decoded without drafts before the next trial: initially, and at most."""


@dataclass
class BatchAccount:
    """The account of closed batches of one size.

    share: the balance, relative to the initial one. to_skip: batches still to be decoded without
    drafts. next_skip: value of to_skip after the next loss.
    """

    share: float = 1.0
    to_skip: int = 0
    next_skip: int = SKIPPED[0]


class Batches:
    """Accounts of the seconds that drafting saved in closed batches, one per power of two in size.

    The guard credits every token with its share of a step, and so overestimates drafting in a
    closed batch. An account is settled when a closed batch ends. Once it is empty, the next
    SKIPPED[0] closed batches of its size are decoded without drafts; the number doubles, up to
    SKIPPED[1], each time that the following trial loses again.

    If all requests have a token limit, each step's drafts in a batch that may be closed cost at
    most an eighth of the balance. Without limits the remaining steps are unknown, and there is no
    bound.

    Bound for each size, if the cost model is accurate: drafting loses at most the initial balance,
    what it has earned since, and for each trial the initial balance again (without limits: the loss
    of one batch).

    least_credit: minimum initial balance in plain steps. A model drafter needs one: it also drafts
    for the slowest request, which at first lags by chance, and by more with more requests.
    State: the accounts; by slot, the initial and the expected final length of the text; of the
    current batch, whether it is open, whether a request has ended, whether all have limits, the
    numbers of requests and steps, the seconds saved, and the seconds by which the guard
    overestimated them.
    """

    def __init__(self, least_credit: float = 0.0) -> None:
        self._least_credit = least_credit
        self.is_closed = False
        self._start = self._goal = np.zeros(0, np.int64)
        self._is_open = self._has_ended = self._is_limited = False
        self._num_requests = self._num_steps = 0
        self._saved_s = self._excess_s = self._plain_s = 0.0
        self._accounts: dict[int, BatchAccount] = defaultdict(BatchAccount)

    def grow(self, num_slots: int) -> None:
        more = np.zeros(num_slots - len(self._goal), np.int64)
        self._start = np.concatenate([self._start, more])
        self._goal = np.concatenate([self._goal, more])

    def begin(
        self, slot: int, length: int, num_left: int | None, running: Ints, lengths: Ints
    ) -> None:
        """Add a request with a text of ``length`` tokens that may emit ``num_left`` more.

        num_left: None without a limit. running, lengths: slots of the running requests, and the
        lengths of their texts.
        """
        if len(running) == 0:
            self._is_open, self._has_ended, self._is_limited = False, False, True
            self._num_requests, self._saved_s, self._excess_s = 0, 0.0, 0.0
            self._num_steps = 0
        elif not self._is_open:
            late = (lengths - self._start[running]).max() > TOGETHER
            self._is_open = bool(self._has_ended or late)
        self.is_closed = self.is_closed and not self._is_open
        self._num_requests += 1
        self._is_limited = self._is_limited and num_left is not None
        self._start[slot] = length
        self._goal[slot] = length + (256 if num_left is None else num_left)

    def end(self, num_running: int) -> float:
        """Remove a request; after the last one, settle the account.

        num_running: requests that have not ended. Returns the seconds by which the guard
        overestimated a closed batch that ends here, otherwise 0.
        """
        self._has_ended = True
        if num_running or self._num_requests < 2:
            return 0.0
        self.is_closed = not self._is_open
        if not self.is_closed:
            return 0.0
        own = self._account
        if own.to_skip:
            own.to_skip -= 1
            return self._excess_s
        earned = own.share + self._saved_s / max(self._credit_s, 1e-9)
        own.share = min(4.0, earned)  # earlier batches' savings are soon spent
        if self._saved_s > 0:
            own.next_skip = SKIPPED[0]
        if own.share < 0.25:  # empty
            own.share, own.to_skip = 1.0, own.next_skip
            own.next_skip = min(2 * own.next_skip, SKIPPED[1])
        return self._excess_s

    @property
    def _account(self) -> BatchAccount:
        return self._accounts[self._num_requests.bit_length()]

    @property
    def _credit_s(self) -> float:
        return max(CREDIT / self._num_requests, self._least_credit) * self._plain_s

    @property
    def step_credit_s(self) -> float:
        """Seconds that the drafts of the next step may cost; infinite without a bound."""
        own = self._account
        if self.is_closed and own.to_skip:
            return 0.0
        if self.is_bounded:
            return max(0.125 * (own.share * self._credit_s + self._saved_s), 0.0)
        return math.inf

    @property
    def may_be_closed(self) -> bool:
        """Whether all requests so far, two or more, began together."""
        return not self._is_open and self._num_requests > 1

    @property
    def is_bounded(self) -> bool:
        """Whether the batch may be closed and all of its requests have limits."""
        return self._is_limited and self.may_be_closed

    def worths(self, slots: Ints, lengths: Ints, share: float) -> Floats:
        """[rows] worth of a token of each request, relative to the mean of all requests.

        share: part of a plain step's time that grows with the number of requests; any token saves
        it. Only tokens of the last request to end save the rest. The chance of being the last is
        estimated from a request's remaining tokens and its speed so far.
        """
        emitted = lengths - self._start[slots]
        speed = max(float(emitted.mean()) / max(self._num_steps, 1), 1.0)
        speeds = (emitted + 8.0 * speed) / (self._num_steps + 8.0)  # the mean counts as 8 steps
        left = (self._goal[slots] - lengths) / speeds
        last = max(float(left.max()), 1.0)
        chances = np.exp((left - last) / (0.5 * last**0.5))
        chances *= len(slots) / chances.sum()
        # with fewer requests, each one's time counts more
        worths: Floats = np.maximum(share + (1.0 - share) * chances, len(slots) ** -0.5)
        return worths

    def advance(self, slots: Ints, lengths: Ints, counts: Ints) -> float:
        """By how much ``counts`` emitted tokens reduce the largest number of remaining tokens."""
        left = self._goal[slots] - lengths
        return float(left.max() - (left - counts).max())

    def observe(self, worth_s: float, batch_s: float, seconds: float, plain_s: float) -> None:
        """Record a step of ``seconds``.

        worth_s, batch_s: seconds of plain decoding that the step's tokens replace, by the guard's
        account and in a closed batch. plain_s: seconds of the step without drafts.
        """
        self._num_steps += 1
        self._saved_s += batch_s - seconds
        self._excess_s += worth_s - batch_s
        self._plain_s = plain_s
