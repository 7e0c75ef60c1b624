"""How many drafted tokens a step verifies, decided before its drafts are written.

The latest drafts that the host knows are two steps old. What a number of tokens was worth on
average over recent steps predicts the next drafts better than these drafts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from draftwise.controller import mixing
from draftwise.controller.acceptance import DISCOUNT
from draftwise.types import Floats, Ints

WEIGHT = 0.25  # of the latest step in a mean
CLASSES = 8  # of survival
RECENT = 64  # steps after which the worth of a length of the model's drafts is measured again
PRIOR = 8.0  # accepted and expected tokens of each class


class Demand:
    """Mean worth of verified tokens: of a whole step, and by request.

    longest: maximum tokens of a draft. Survival is the probability that all tokens of a draft up to
    each one are accepted. The worth of a step's tokens, the most likely ones first, is kept per
    request as a function of tokens per request, so it fits any number of requests. Drafts in which
    the model drafter wrote another number of tokens (``head``) have means of their own. slots: of
    requests, in the controller.

    Survival is corrected, by class, with the share of verified tokens that were accepted: the
    tokens that seem best are verified, so among them overestimates are more frequent.
    """

    def __init__(self, longest: int) -> None:
        self._each = np.arange(8 * longest + 1) / 8  # eight points for each token
        self._worth = np.zeros((longest + 1, len(self._each)))
        self._num_steps = np.zeros(longest + 1, np.int64)
        self._latest_step = np.zeros(longest + 1, np.int64)
        self._alive = np.zeros((0, longest + 1, longest))
        self._latest = np.full(0, -1)  # by slot, the model's tokens in its latest draft
        self._is_known = np.zeros((0, longest + 1), bool)
        self._seen = np.full((2, CLASSES), PRIOR)

    def learn(self, alive: Floats, verified: Ints, kept: Ints) -> None:
        """Take up what became of drafts. verified, kept: [requests] tokens, kept: accepted ones."""
        lanes = np.arange(alive.shape[1])
        is_seen, is_kept = lanes < verified[:, None], lanes < kept[:, None]
        classes, weights = _class_of(alive[is_seen]), (is_kept[is_seen], alive[is_seen])
        found = [np.bincount(classes, weight, CLASSES) for weight in weights]
        age = DISCOUNT ** np.bincount(classes, minlength=CLASSES)
        self._seen = age * self._seen + found

    def observe(self, slots: Ints, alive: Floats, head: int) -> None:
        """Take up the drafts of a step. alive: [requests, longest] survival, 0 behind a draft."""
        num = len(slots)
        if not num:
            return
        accepted, expected = self._seen
        alive = np.minimum(alive * (accepted / expected)[_class_of(alive)], 1.0)
        totals = _totals(alive)
        worth = np.interp(self._each * num, np.arange(len(totals)), totals) / num
        self._num_steps[head] += 1
        self._latest_step[head] = self._num_steps.sum()
        weight = max(WEIGHT, 1 / self._num_steps.item(head))
        self._worth[head] += weight * (worth - self._worth[head])
        if (most := int(slots.max())) >= len(self._latest):
            more = most + 1 + len(self._latest)
            self._alive.resize((more, *self._alive.shape[1:]), refcheck=False)
            self._is_known.resize((more, self._is_known.shape[1]), refcheck=False)
            self._latest = np.append(self._latest, np.full(more - len(self._latest), -1))
        before = np.where(self._is_known[slots, head, None], self._alive[slots, head], alive)
        self._alive[slots, head] = before + WEIGHT * (alive - before)
        self._is_known[slots, head], self._latest[slots] = True, head

    def knows(self, head: int) -> bool:
        """Whether any draft was observed in which the model wrote ``head`` tokens."""
        return bool(self._num_steps[head])

    def end(self, slot: int) -> None:
        """Forget the request of a slot, known or not."""
        if slot < len(self._latest):
            self._is_known[slot], self._latest[slot] = False, -1

    def budget(self, num: int, head: int, seconds: Floats, rate: float) -> int:
        """Drafted tokens that a step of ``num`` requests should verify.

        seconds: [most + 1] seconds of the step by number of drafted tokens. rate: tokens per second
        that these must bring.
        """
        return int(self._gains(num, head, seconds, rate).argmax())

    def head(
        self, num: int, wanted: int, seconds: Floats, rate: float,
        draft_seconds: Callable[[int], float],
    ) -> int:  # fmt: skip
        """The length of the model's drafts that is worth most to ``num`` requests, at its budget.

        ``wanted`` unless its worth was observed lately. Other arguments as of ``budget``.
        """
        if self._latest_step[wanted] + RECENT < self._num_steps.sum() or not self.knows(wanted):
            return wanted
        heads = np.flatnonzero(self._num_steps).tolist()
        return max(heads, key=lambda head: (
            self._gains(num, head, seconds, rate).max() - rate * draft_seconds(head)
        ))  # fmt: skip

    def _gains(self, num: int, head: int, seconds: Floats, rate: float) -> Floats:
        each = np.arange(len(seconds)) / num
        gains: Floats = num * np.interp(each, self._each, self._worth[head]) - rate * seconds
        return gains

    def lengths(
        self, slots: Ints, rooms: Sequence[int], head: int, seconds: Floats, rate: float
    ) -> list[int]:
        """Tokens to verify of each draft, at most ``rooms``, of requests that were observed."""
        heads = np.where(self._is_known[slots, head], head, self._latest[slots])
        alive, capacities = self._alive[slots, heads], np.asarray(rooms)
        alive[np.arange(alive.shape[1]) >= capacities[:, None]] = 0.0
        most = _best(_totals(alive), seconds, rate)
        found: list[int] = mixing.divide(alive, capacities, most).tolist()
        return found


def _class_of(alive: Floats) -> Ints:
    return np.minimum((CLASSES * alive).astype(np.int64), CLASSES - 1)


def _totals(alive: Floats) -> Floats:
    """Expected tokens by number of verified ones, the most likely first."""
    return np.append(0.0, np.sort(alive, axis=None)[::-1].cumsum())


def _best(totals: Floats, seconds: Floats, rate: float) -> int:
    """The number of tokens whose total exceeds their seconds by most."""
    num = min(len(totals), len(seconds))
    return int((totals[:num] - rate * seconds[:num]).argmax())
