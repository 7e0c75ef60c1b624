"""Paired ratios and their intervals, on timings with known ratios."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.bench.results import Timing, ratio, turns


def timing(seed: int, speedup: float, num: int = 30, noise: float = 0.1) -> Timing:
    """Prompts of very different lengths, with independent noise in each method's time."""
    rng = np.random.default_rng(seed)
    work = rng.uniform(0.2, 5.0, num)
    disturbed = work * rng.lognormal(0.0, noise, (2, num))
    seconds = disturbed / np.array([[1.0], [speedup]])
    return Timing(["base", "other"], seconds, 10 * work, {"base": True, "other": True})


def test_twice_as_fast_is_an_interval_around_two() -> None:
    found = timing(0, 2.0).compare("other", "base")
    assert found.low < 2.0 < found.high
    assert 1.9 < found.value < 2.1
    assert 0 < found.high - found.low < 0.3


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Nominally 95%; the bootstrap of 30 prompts covers a little less, and 100 draws vary by 2%."""
    found = [timing(seed, 1.0).compare("other", "base") for seed in range(100)]
    assert sum(one.low <= 1.0 <= one.high for one in found) >= 86


def test_the_interval_is_of_the_ratio_and_not_of_two_speeds() -> None:
    """Variation between prompts is common to both methods and must not widen the interval."""
    exact = timing(0, 2.0, noise=0.0).compare("other", "base")
    assert exact.low == pytest.approx(2.0)
    assert exact.high == pytest.approx(2.0)


def test_answers_of_different_length_compare_by_tokens_a_second() -> None:
    tokens, seconds = np.array([10.0, 20.0]), np.array([1.0, 2.0])
    assert ratio(tokens, seconds, tokens / 2, seconds).value == 2.0


def test_turns_are_in_random_order_and_the_same_again() -> None:
    names = ["a", "b", "c"]
    found = list(turns(names, 4, 2, seed=1))
    assert found == list(turns(names, 4, 2, seed=1))
    assert found[: 4 * 1] == list(turns(names, 4, 1, seed=1))
    assert [turn[:2] for turn in found] == [(r, p) for r in range(2) for p in range(4)]
    assert all(sorted(order) == names for *_, order in found)
    assert len({tuple(order) for *_, order in found}) > 2
