"""Policies that do not learn, drawing, and tallies."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.bandits.base import Tally, draw
from draftwise.bandits.simple import FixedPlan, Random
from draftwise.types import Decision, Feedback


def test_a_plan_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.\.2"):
        FixedPlan(3, plan=3)


def test_random_is_uniform() -> None:
    """9,000 draws of 1/3: a standard error of 0.005; 0.025 is 5 of them (false alarm 2e-6)."""
    policy = Random(3, np.random.default_rng(0))
    drawn = np.bincount([policy.choose().plan for _ in range(9000)], minlength=3) / 9000
    np.testing.assert_allclose(drawn, 1 / 3, atol=0.025)


class Stub:
    """A generator that always returns the same number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(
    ("number", "plan"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999999999999999, 3)]
)
def test_draw_never_draws_probability_0(number: float, plan: int) -> None:
    """p = (0, 1/4, 0, 3/4, 0) at both ends of every step, including rounding at 1."""
    stub: np.random.Generator = Stub(number)  # type: ignore[assignment]
    assert draw(np.array([0, 0.25, 0, 0.75, 0]), stub) == plan


def test_tally_by_hand() -> None:
    tally = Tally(3)
    tally.add(np.array([0.5, np.nan, 0.25]), np.array([True, False, True]))
    tally.add(np.array([1.0, np.nan, 0.0]), np.array([True, False, False]))
    tally.add(np.zeros(3), np.zeros(3, dtype=bool))
    assert tally.counts.tolist() == [2, 0, 1]
    assert tally.means().tolist() == [0.75, 0, 0.25]
    assert tally.squares.tolist() == [1.25, 0, 0.0625]
    assert (tally.unseen(), tally.num_rounds) == (1, 2)


def test_round_numbers_count_choices() -> None:
    for policy in (FixedPlan(2), Random(2, np.random.default_rng(0))):
        assert [policy.choose().round for _ in range(3)] == [1, 2, 3]
        policy.learn(Decision(0, 1.0, 1), Feedback(np.zeros(2), np.ones(2, dtype=bool)))
