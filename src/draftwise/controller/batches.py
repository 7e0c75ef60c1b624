"""Closed batches: requests that begin together, and whose places nobody takes when they end.

In open traffic another request takes the place of one that ends, so a token of any request is worth
the same. A closed batch (offline generation, an agent that waits for all its calls) takes as many
steps as its slowest request: tokens of the others save only their own share of a step. Whether
traffic is closed is learnt from the previous batch.
"""

from __future__ import annotations

import numpy as np

from draftwise.types import Ints

TOGETHER = 32
"""Most tokens that a request of a closed batch has emitted when the last one begins."""
CREDIT = 48.0
"""Balance at the start, and largest balance, in plain steps, times the root of the batch's size."""
SKIPPED = 8, 256
"""Closed batches without drafts before another one is tried: the first time, and most."""
ANSWER = 256
"""Tokens expected of an answer without a limit."""


class Batches:
    """An account of the seconds that drafting has saved in closed batches.

    The guard's account values the tokens of all requests alike, which overrates drafting in a
    closed batch. This one is settled when a batch has ended and turned out to be closed. When it
    becomes empty, the next SKIPPED[0] closed batches are decoded without drafts, twice as many if
    the one after them loses again, and so on up to SKIPPED[1].

    Bound: drafting loses at most CREDIT plain steps over the root of the number of requests, and
    one batch's loss each time that the account becomes empty.

    State: by slot, the length of the text at its start and at its expected end; whether the present
    batch is open and a request of it has ended, its number of requests, the seconds it saved, and
    those by which the guard overrated it; the balance over all closed batches; how many are yet
    to be skipped, and how many the next time.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._start = self._goal = np.zeros(0, np.int64)
        self._is_open = self._has_ended = False
        self._num_requests = 0
        self._saved_s = self._overrated_s = self._plain_s = 0.0
        self._balance: float | None = None
        self._to_skip, self._next_skip = 0, SKIPPED[0]

    def grow(self, num_slots: int) -> None:
        more = np.zeros(num_slots - len(self._goal), np.int64)
        self._start = np.concatenate([self._start, more])
        self._goal = np.concatenate([self._goal, more])

    def begin(self, slot: int, length: int, num_left: int, running: Ints, lengths: Ints) -> None:
        """A request begins with a text of ``length`` tokens and may emit ``num_left`` more.

        running, lengths: slots of the running requests, and the lengths of their texts.
        """
        if len(running) == 0:
            self._is_open = self._has_ended = False
            self._num_requests, self._saved_s, self._overrated_s = 0, 0.0, 0.0
        elif not self._is_open:
            late = (lengths - self._start[running]).max() > TOGETHER
            self._is_open = bool(self._has_ended or late)
        self.is_closed = self.is_closed and not self._is_open
        self._num_requests += 1
        self._start[slot], self._goal[slot] = length, length + num_left

    def end(self, num_running: int) -> float:
        """A request has ended; num_running: how many others have not.

        Returns the seconds by which the guard has overrated a closed batch that ends.
        """
        self._has_ended = True
        if num_running or self._num_requests < 2:
            return 0.0
        self.is_closed = not self._is_open
        if not self.is_closed:
            return 0.0
        if self._to_skip:
            self._to_skip -= 1
            return self._overrated_s
        most = CREDIT / self._num_requests**0.5 * self._plain_s
        before = most if self._balance is None else max(self._balance, 0.0)
        self._balance = min(most, before + self._saved_s)
        if self._balance > 0:
            self._next_skip = SKIPPED[0]
        else:
            self._to_skip = self._next_skip
            self._next_skip = min(2 * self._next_skip, SKIPPED[1])
        return self._overrated_s

    @property
    def allow_drafts(self) -> bool:
        """False in a closed batch that is to be skipped."""
        return not (self.is_closed and self._to_skip)

    @property
    def may_be_closed(self) -> bool:
        """Whether the present batch has several requests that began together."""
        return not self._is_open and self._num_requests > 1

    def advance(self, slots: Ints, lengths: Ints, counts: Ints) -> float:
        """Tokens by which the hindmost request comes closer to its end if ``counts`` are emitted.

        The hindmost is the request with most tokens left, before and after the step.
        """
        left = self._goal[slots] - lengths
        return float(left.max() - (left - counts).max())

    def book(self, worth_s: float, batch_s: float, seconds: float, plain_s: float) -> None:
        """Book a step of ``seconds``.

        worth_s, batch_s: seconds of plain decoding that it replaced, with equal tokens and of the
        batch. plain_s: seconds of the step without drafts.
        """
        self._saved_s += batch_s - seconds
        self._overrated_s += worth_s - batch_s
        self._plain_s = plain_s
