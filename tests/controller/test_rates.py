"""Acceptance rates against the sums in their docstring."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftwise.controller.acceptance import bucket_of
from draftwise.controller.rates import MatchTable, Rates

UNITS = st.floats(0, 1)
EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(UNITS, max_size=5), st.floats(0.1, 3))
    | st.tuples(st.just(-1), st.lists(st.integers(0, 2), max_size=3), st.integers(0, 9)),
    max_size=8,
)
"""Weighted alphas of a drafter; or tokens emitted (-1) with all but these drafters unscored."""


class Book:
    """One drafter: its past alphas, with weights and with what remains of them in each memory."""

    def __init__(self, prior: float, weight: float) -> None:
        self.prior, self.weight = prior, weight
        self.slow: list[list[float]] = []  # [alpha, weight left]
        self.fast: list[list[float]] = []
        self.errors: list[list[float]] = []  # [error of slow minus error of fast, weight left]

    def rate(self, told: list[list[float]], prior: float, weight: float) -> float:
        known = sum(w * alpha for alpha, w in told) + weight * prior
        return known / (sum(w for _, w in told) + weight)

    def both(self, granted: float) -> tuple[float, float]:
        prior = self.prior * granted
        return self.rate(self.slow, prior, self.weight), self.rate(self.fast, prior, 2.0)

    def add(self, alpha: float, weight: float, discount: float, granted: float) -> None:
        slow, fast = ((rate - alpha) ** 2 for rate in self.both(granted))
        for told, kept, value in (
            (self.slow, discount, alpha),
            (self.fast, 0.8, alpha),
            (self.errors, discount, slow - fast),
        ):
            self.keep(told, kept)
            told.append([value, weight])

    def fade(self, kept: float) -> None:
        for told in (self.slow, self.fast, self.errors):
            self.keep(told, kept)

    @staticmethod
    def keep(told: list[list[float]], share: float) -> None:
        for entry in told:
            entry[1] *= share

    def blended(self, granted: float) -> float:
        slow, fast = self.both(granted)
        odds = math.log(0.12 / 0.88) + 3 * sum(w * error for error, w in self.errors)
        return slow + (fast - slow) / (1 + math.exp(-odds))


def granted(pool: Sequence[Sequence[float]]) -> float:
    num, den = sum(w * alpha for alpha, w in pool), sum(w for _, w in pool)
    return min(1.0, (4 * 0.55 + num) / (4 + den) / 0.2)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    EVENTS,
    st.floats(0.5, 1),
    st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.5, 5)), min_size=3, max_size=3),
)
@example([(0, [0.0] * 40, 1.0), (1, [1.0, 0.0, 1.0], 1.0)], 0.9, [(0.5, 1.0), (0.9, 5.0), (1, 2)])
def test_rates_are_what_is_written(events, discount, priors) -> None:
    rates = Rates(3, discount)
    rates.expect(*(np.array(column) for column in zip(*priors, strict=True)))
    books, pool = [Book(*prior) for prior in priors], []
    for drafter, what, amount in events:
        if drafter < 0:
            rates.fade(amount, set(what))
            Book.keep(pool, discount**amount)
            for unscored in {0, 1, 2} - set(what):
                books[unscored].fade(discount**amount)
        else:
            rates.add(drafter, what, amount)
            share = granted(pool)
            for alpha in what:
                books[drafter].add(alpha, amount, discount, share)
            pool += [[alpha, amount] for alpha in what]
    share = granted(pool)
    assert rates.of().tolist() == pytest.approx([book.blended(share) for book in books])
    weights = [book.weight + sum(w for _, w in book.slow) for book in books]
    assert rates.weights().tolist() == pytest.approx(weights)


def test_where_nothing_is_said_an_alpha_weighs_one_and_a_prior_two() -> None:
    rates = Rates(2, 0.9)
    rates.add(1, [0.0, 1.0])
    assert rates.weights().tolist() == pytest.approx([2.0, 2.0 + 0.9 + 1])
    assert rates.of()[0] == pytest.approx(0.55)


def test_where_everything_fails_an_unknown_drafter_is_granted_less_and_stays_where_it_was() -> None:
    """Its later alphas are judged by the lower prior of that time, not by the full prior."""
    rates = Rates(2, 1.0)
    rates.add(0, [0.0] * 40)
    share = 4 * 0.55 / 44 / 0.2
    assert share < 1
    assert rates.of()[1] == pytest.approx(0.55 * share)
    rates.add(1, [1.0])
    slow = fast = 2 * 0.55 * share
    share = (4 * 0.55 + 1) / 45 / 0.2
    held = 2 * 0.55 * share
    assert slow == fast
    assert rates.of()[1] == pytest.approx((1 + held) / 3)


def test_a_drafter_that_was_scored_does_not_fade() -> None:
    rates = Rates(2, 0.5)
    rates.add(0, [1.0])
    rates.add(1, [1.0])
    rates.fade(3, {1})
    assert rates.weights().tolist() == [2 + 1 / 8, 3.0]


@pytest.mark.parametrize("match", [1, 2, 3, 4, 5, 8, 9, 16, 17, 400])
def test_matches_are_counted_in_the_rows_of_the_other_tables(match: int) -> None:
    table = MatchTable()
    table.add([1.0], [match])
    assert [row for row, seen in enumerate(table.den) if seen] == [bucket_of(match)]
