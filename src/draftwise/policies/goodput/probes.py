"""Looks at drafters that are not played: what one is worth, and when it is due."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from draftwise.policies.goodput.acceptance import PRIOR, PRIOR_WEIGHT
from draftwise.policies.goodput.pricing import PlanCosts, expected_tokens
from draftwise.policies.state import Kept
from draftwise.types import Floats

PROBE_TOKENS_PAID = 32
"""Tokens that a look reads, at most."""

HASTY = 0.25
"""Weight of the alphas of a look that skipped a part of the text."""

CHANGED = 0.02
"""Probability that a drafter is no longer what is believed of it, but like an unknown one."""

FIRST_LOOKS = 3
"""Looks before the first round where there is a memory: what they show makes others needless."""

ACCEPTANCES = (0.15, 0.3, 0.45, 0.6, 0.7, 0.78, 0.85, 0.91, 0.96)
"""What a drafter may turn out to be worth: the points at which gains are summed up."""

_NUM_MEANS, _LEAST_WEIGHT, _NUM_WEIGHTS = 51, 0.25, 19  # weights double every other row
_ROUNDS_A_PRICE = 16  # gains change with costs, which change slowly


@functools.cache
def _beliefs() -> Floats:
    """[mean x weight, acceptance] mass of Beta beliefs around each of ``ACCEPTANCES``."""
    found = 1.0 / (1.0 + np.exp(-np.linspace(-12.0, 12.0, 1201)))
    points = np.array(ACCEPTANCES)
    nearest = np.searchsorted((points[1:] + points[:-1]) / 2, found)
    table = np.zeros((_NUM_MEANS, _NUM_WEIGHTS, len(points)))
    for row, mean in enumerate(np.linspace(0.0, 1.0, _NUM_MEANS).clip(0.01, 0.99)):
        for column in range(_NUM_WEIGHTS):
            weight = _LEAST_WEIGHT * 2.0 ** (column / 2)
            logs = weight * (mean * np.log(found) + (1.0 - mean) * np.log1p(-found))
            mass = np.exp(logs - logs.max())
            table[row, column] = np.bincount(nearest, mass / mass.sum(), minlength=len(points))
    return table.reshape(-1, len(points))


def _place(means: Any, weights: Any) -> Any:
    """The row of ``_beliefs`` of such a belief."""
    columns = np.minimum(2.0 * np.log2(weights / _LEAST_WEIGHT) + 0.5, _NUM_WEIGHTS - 1)
    rows = means * (_NUM_MEANS - 1) + 0.5
    return np.int64(rows) * _NUM_WEIGHTS + np.int64(columns)


@functools.cache
def _unknown() -> Floats:
    """[A] the row of ``_beliefs`` of a drafter that nothing is known of."""
    row: Floats = _beliefs()[_place(PRIOR, PRIOR_WEIGHT)]
    return row


class ProbeScheduler(Kept):
    """Whom to score on the last tokens of the text, though it did not draft them.

    Source: this project's own; the value of information (Howard 1966), and the rule of ski rental:
        what is not bought is paid for as it goes.
    Update: a drafter of which a Beta(n a, n (1 - a)) is believed would save g = E[(1/V - 1/V')+]
        seconds a token, V being the best price and V' its own best at an acceptance drawn from what
        a look of q alphas may show: Beta of the same mean and of variance a (1 - a) / (n + 1) * q /
        (q + n). Catching up is part of 1/V': its seconds over the tokens that it may be played
        for. A look is due when g * tokens left, and what was missed without one so far, exceed its
        seconds; tokens left are those of the answer, and no more than the rates remember. With a
        memory what is believed of a drafter is in doubt: with probability 2% it is like an unknown
        one, which adds to what is missed; rows of a batch, which all wait, share what they miss.
    State: by drafter the position up to which it is scored, and up to which it has read; the end of
        the text, and tokens since the last question; seconds missed so far [D], which requests
        share if they share a memory.
    Cost: O(D) a round, O(K) every 16 rounds.
    """

    KEPT = ("_told", "_read", "_end", "_num_new", "missed_s")

    def __init__(self, num_drafters: int, memory: float) -> None:
        self._memory = memory
        self._told: Floats = np.zeros(num_drafters)
        self._read: Floats = np.zeros(num_drafters)
        self._end = self._num_new = 0
        self.missed_s: Floats = np.zeros(num_drafters)
        self._doubt, self._most = 0.0, num_drafters
        self._ideal: Floats | None = None
        self._age = 0

    def remember(self, missed_s: Floats) -> None:
        """There is a memory of other requests: seconds missed [D] are shared by all of them."""
        self.missed_s, self._doubt, self._most = missed_s, CHANGED, FIRST_LOOKS

    def scored(self, drafter: int, end: int, is_hasty: bool) -> None:
        """A drafter was scored up to this position, and unless hastily it has read that far."""
        self._told[drafter], self.missed_s[drafter] = end, 0.0
        if not is_hasty:
            self._read[drafter] = end

    def reached(self, end: int, num_emitted: int) -> None:
        """The text ends here now, so many tokens later."""
        self._num_new += num_emitted
        self._end = end

    def catching_up(self, read_s: Floats, left: float) -> Floats:
        """[D] seconds a token of reading what was missed, over what a drafter may be played for."""
        missed: Floats = np.maximum(self._end - self._read, 0.0)
        return missed * read_s / max(1.0, min(left, self._memory))

    def due(
        self, best: float, rates: Floats, weights: Floats, costs: PlanCosts, left: float, rows: int,
        catching_up: Floats | None = None,
    ) -> list[int]:  # fmt: skip
        """Drafters to look at now: before the first round the best few, then the best.

        best: tokens a second of the best plan. rates, weights: [D] beliefs, 0 where a drafter has
        no model to look at. left: tokens of the answer. rows: that wait for the look. catching_up:
        [D] what the method of this name has given, None = it is asked.
        """
        if catching_up is None:
            catching_up = self.catching_up(costs.read_s, left)
        unread, num = self._end - self._read, np.minimum(PROBE_TOKENS_PAID, self._end - self._told)
        read = np.minimum(PROBE_TOKENS_PAID, unread)
        num = np.where(unread > PROBE_TOKENS_PAID, HASTY, 1.0) * num + 1e-3
        narrow = np.maximum((weights + 1.0) * (num + weights) / num - 1.0, _LEAST_WEIGHT)
        place = _place(rates, narrow)
        spared = np.maximum((1.0 / best - catching_up)[:, np.newaxis] - self._ideal_s(costs), 0.0)
        gains = (_beliefs().take(place, axis=0) * spared).sum(axis=1)
        hopes = spared @ _unknown()
        self.missed_s += (gains + self._doubt * hopes) * self._num_new / rows
        self._num_new = 0
        value = gains * min(left, self._memory) + self.missed_s
        value -= rows * (costs.draft_s + costs.read_s * read)
        value[(weights <= 0.0) | (num < 1.0)] = 0.0
        if self._told.any():
            best_one = int(value.argmax())
            return [best_one] if value[best_one] > 0.0 else []
        best_ones = np.argsort(-value)[: self._most]
        return [int(drafter) for drafter in best_ones if value[drafter] > 0.0]

    def _ideal_s(self, costs: PlanCosts) -> Floats:
        """[D, A] seconds of a token by each drafter's best plan, if its acceptance were such."""
        if self._ideal is None or self._age >= _ROUNDS_A_PRICE:
            acceptances = np.array(ACCEPTANCES)[:, np.newaxis]
            tokens = expected_tokens(acceptances, costs.lengths)
            self._ideal = np.full((len(costs.names), len(ACCEPTANCES)), np.inf)
            np.minimum.at(self._ideal, costs.drafters, (costs.seconds / tokens).T)
            self._age = 0
        self._age += 1
        return self._ideal
