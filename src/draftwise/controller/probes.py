"""Probes: which idle drafters to score on the last tokens of the text, and when."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from draftwise.controller.plans import PlanCosts
from draftwise.controller.rates import PRIOR, PRIOR_WEIGHT
from draftwise.types import Floats

PROBE_TOKENS_PAID = 32  # maximum number of tokens that a probe processes
ACCEPTANCES = (0.15, 0.3, 0.45, 0.6, 0.7, 0.78, 0.85, 0.91, 0.96)  # grid on which gains are summed
_NUM_MEANS, _LEAST_WEIGHT, _NUM_WEIGHTS = 51, 0.25, 19  # weights double every other column


@functools.cache
def _beliefs() -> Floats:
    """[mean x weight, acceptance] mass of Beta beliefs, by the nearest of ``ACCEPTANCES``."""
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
    columns = np.minimum(2.0 * np.log2(weights / _LEAST_WEIGHT) + 0.5, _NUM_WEIGHTS - 1)
    rows = means * (_NUM_MEANS - 1) + 0.5
    return np.int64(rows) * _NUM_WEIGHTS + np.int64(columns)


@functools.cache
def _unknown() -> Floats:
    row: Floats = _beliefs()[_place(PRIOR, PRIOR_WEIGHT)]
    return row


class ProbeScheduler:
    """Decides which idle drafters to probe on the last tokens of the text.

    Source: this project; the value of information (Howard 1966) and ski rental: a probe is bought
        once not buying it has cost as much as its price.
    Update: a drafter with belief Beta(n a, n (1 - a)) would save g = E[(1/V - 1/V')+] seconds per
        token, where V is the best plan's rate and V' the drafter's best rate at an acceptance drawn
        from the posterior mean after a probe of q alphas: a Beta of the same mean and of variance a
        (1 - a) / (n + 1) * q / (q + n). 1/V' includes catching up, over the tokens that the drafter
        may be played for. A probe is due when g * tokens left, plus the seconds missed so far,
        exceed its seconds, which count once per row that waits; tokens left are those of the
        answer, at most the memory of the rates. With shared statistics a drafter counts as unknown
        with probability 2%, which adds to the seconds missed. Each row adds its share of the
        seconds missed.
    State: per drafter, the positions up to which it was scored and has processed the text; the end
        of the text; tokens since the last decision; seconds missed [D].
    Cost: O(D) per round, O(K) every 16 rounds.
    """

    def __init__(self, num_drafters: int, memory: float) -> None:
        self._memory = memory
        self._scored_until: Floats = np.zeros(num_drafters)
        self._read_until: Floats = np.zeros(num_drafters)
        self._end = self._num_new = 0
        self.missed_s: Floats = np.zeros(num_drafters)
        self._doubt, self._most = 0.0, num_drafters
        self._ideal: Floats | None = None
        self._age = 0

    def expect(self) -> None:
        """Begin with what earlier requests predict, which may have changed since."""
        self._doubt, self._most = 0.02, 3  # probes before the first round

    def scored(self, drafter: int, end: int, is_partial: bool) -> None:
        """Record a score up to ``end``; is_partial: the drafter skipped part of the text."""
        self._scored_until[drafter], self.missed_s[drafter] = end, 0.0
        if not is_partial:
            self._read_until[drafter] = end

    def reached(self, end: int, num_emitted: int) -> None:
        self._num_new += num_emitted
        self._end = end

    def is_behind(self, drafter: int) -> bool:
        """Whether a drafter has missed more of the text than a probe processes."""
        return bool(self._end - self._read_until[drafter] > PROBE_TOKENS_PAID)

    def catching_up(self, read_s: Floats, left: float) -> Floats:
        """[D] seconds of catching up, per token that a drafter may be played for."""
        missed: Floats = np.maximum(self._end - self._read_until, 0.0)
        return missed * read_s / max(1.0, min(left, self._memory))

    def due(
        self, best: float, rates: Floats, weights: Floats, costs: PlanCosts, left: float, rows: int,
        catching_up: Floats | None = None,
    ) -> list[int]:  # fmt: skip
        """Drafters to probe now: the best few before any score, later only the best one.

        best: the best plan's rate. rates, weights: [D] beliefs; weight 0: nothing to probe. left:
        tokens of the answer. rows: rows that wait. catching_up: [D], if already computed.
        """
        if catching_up is None:
            catching_up = self.catching_up(costs.read_s, left)
        unread = self._end - self._read_until
        num = np.minimum(PROBE_TOKENS_PAID, self._end - self._scored_until)
        read = np.minimum(PROBE_TOKENS_PAID, unread)
        num = np.where(unread > PROBE_TOKENS_PAID, 0.25, 1.0) * num + 1e-3
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
        if self._scored_until.any():
            best_one = int(value.argmax())
            return [best_one] if value[best_one] > 0.0 else []
        best_ones = np.argsort(-value)[: self._most]
        return [int(drafter) for drafter in best_ones if value[drafter] > 0.0]

    def _ideal_s(self, costs: PlanCosts) -> Floats:
        """[D, A] seconds per token of each drafter's best plan, by acceptance."""
        if self._ideal is None or self._age >= 16:  # costs change slowly
            rates = np.repeat(np.array(ACCEPTANCES)[:, np.newaxis], len(costs.names), axis=1)
            tokens = np.stack([costs.expected_tokens(row, {}) for row in rates])
            self._ideal = np.full((len(costs.names), len(ACCEPTANCES)), np.inf)
            np.minimum.at(self._ideal, costs.drafters, (costs.seconds / tokens).T)
            self._age = 0
        self._age += 1
        return self._ideal
