"""The cost meter: robust to odd samples, never dearer than what is known, forgetful."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.engine import CostMeter
from modules import module_of

costs = module_of(CostMeter)
_fit, _Samples, _seconds = costs._fit, costs._Samples, costs._seconds


def metered(*samples: tuple[int, float], rows: int = 1) -> CostMeter:
    """A meter that saw forwards of so many tokens taking so many seconds."""
    meter = CostMeter({"a": 0.25})
    for tokens, seconds in samples:
        meter.saw_target(rows, tokens, seconds)
    return meter


@pytest.mark.parametrize("place", range(6))
def test_one_slow_sample_never_makes_a_length_dear(place: int) -> None:
    """Wherever it comes: the estimate would end drafting, and nothing would correct it."""
    for num in range(place + 1, 7):
        if num < 2:
            continue
        seconds = [1.0] * num
        seconds[place] = 50.0
        meter = metered(*((3, s) for s in seconds))
        assert meter.costs(1, 5).target_s.max() <= 1.0, seconds
        for s in seconds:
            meter.saw_draft("a", 1, 2, 2 * s)
        assert meter.costs(1, 5).draft_s["a"] <= 1.0, seconds


def test_the_first_call_of_a_shape_does_not_count() -> None:
    """It pays for what is set up once."""
    assert metered((1, 9.0), (1, 1.0), (1, 1.0)).costs(1, 1).target_s.tolist() == [1.0]


def test_many_samples_count_by_their_median() -> None:
    assert metered(*((1, s) for s in [9, 1, 2, 3, 4, 5])).costs(1, 1).target_s.tolist() == [3.0]


def test_unmeasured_lengths_take_the_value_of_their_neighbours() -> None:
    """Between measured ones the line, beyond the longest its own; below the shortest its share."""
    meter = metered(*[(2, 1.0), (5, 4.0)] * 3)
    np.testing.assert_allclose(meter.costs(1, 7).target_s, [0.5, 1, 2, 3, 4, 4, 4])


def test_plain_decoding_that_was_never_measured_looks_cheap_enough_to_be_tried() -> None:
    meter = metered(*[(9, 2.7)] * 3)
    assert meter.costs(1, 9).target_s[0] == pytest.approx(0.3)
    meter.saw_target(1, 1, 2.5)
    meter.saw_target(1, 1, 2.5)
    assert meter.costs(1, 9).target_s[0] == pytest.approx(2.5)


def test_a_length_is_never_dearer_than_a_longer_one() -> None:
    meter = metered(*[(2, 3.0), (4, 1.0), (8, 2.0)] * 3)
    target_s = meter.costs(1, 8).target_s
    assert target_s[1] == 1.0
    assert (np.diff(target_s) >= 0).all()


def test_nothing_measured_is_one_unit_and_the_guess() -> None:
    costs = CostMeter({"a": 0.25}).costs(1, 3)
    assert costs.target_s.tolist() == [1.0, 1.0, 1.0]
    assert costs.draft_s == {"a": 0.25}


def test_an_unmeasured_drafter_is_guessed_from_the_target() -> None:
    assert metered(*[(1, 2.0)] * 3).costs(1, 1).draft_s == {"a": 0.5}


def test_old_measurements_are_forgotten() -> None:
    meter = metered(*[(6, 1.0)] * 3)
    for _ in range(400):
        meter.saw_target(1, 1, 0.5)
    assert meter.costs(1, 6).target_s.max() == 1.0
    meter.saw_target(1, 1, 0.5)
    assert meter.costs(1, 6).target_s.tolist() == [0.5] * 6
    assert metered(*[(6, 1.0)] * 3, (1, 0.5)).costs(1, 6).target_s.max() == 1.0


def test_steps_that_were_not_taken_cost_nothing() -> None:
    meter = metered(*[(1, 1.0)] * 3)
    meter.saw_draft("a", 1, 0, 5.0)
    assert meter.costs(1, 1).draft_s == {"a": 0.25}


def plane(rows: int, tokens: int) -> float:
    """What forwards cost in the tests below."""
    return 8.0 + 0.4 * rows + 0.2 * rows * tokens


def crowded(*sizes: tuple[int, int]) -> CostMeter:
    """A meter that saw so many rows of so many tokens, three times each, at those costs."""
    meter = CostMeter({"a": 0.25})
    for rows, tokens in sizes:
        for _ in range(3):
            meter.saw_target(rows, tokens, plane(rows, tokens))
    return meter


def test_batch_sizes_tell_each_other_what_they_cost() -> None:
    """Five rows, measured at three tokens; 16 rows told what more tokens and more rows cost."""
    meter = crowded((16, 1), (16, 2), (16, 9), (5, 3))
    expected = [plane(6, n) for n in (1, 2, 3, 4, 9)]
    found = meter.costs(6, 9).target_s
    np.testing.assert_allclose(found[[2, 3, 8]], expected[2:], rtol=1e-6)
    assert found[0] == pytest.approx(0.8 * expected[0], rel=1e-6)  # tried soon, if it may pay


def test_a_batch_size_never_measured_is_told_by_the_others() -> None:
    meter = crowded((16, 1), (16, 5), (2, 1), (2, 5))
    np.testing.assert_allclose(meter.costs(6, 5).target_s[[0, 4]], [plane(6, 1), plane(6, 5)])


def test_one_batch_size_alone_is_as_ever() -> None:
    """Requests that run alone do not pay for what only batches need."""
    found = crowded((1, 1), (1, 4)).costs(1, 6).target_s
    assert found[3:].tolist() == pytest.approx([plane(1, 4)] * 3)


SECONDS = st.floats(1e-6, 1e3)
MANY = settings(max_examples=150, deadline=None, derandomize=True)


@MANY
@given(st.lists(st.tuples(SECONDS, st.integers(1, 64)), min_size=2, max_size=25))
def test_samples_keep_the_latest_fifteen_without_the_first(told: list[tuple[float, int]]) -> None:
    samples = _Samples()
    for round_, (seconds, rows) in enumerate(told):
        assert samples.has_value == (round_ > 1)
        samples.add(seconds, round_, rows)
    kept = [seconds for seconds, _ in told[1:]][-15:]
    few = min(told[0][0], *kept) if len(told) <= 4 else statistics.median(kept)
    assert samples.value() == few
    assert samples.last_round == len(told) - 1
    mean = 0.0
    for place, (_, rows) in enumerate(told):
        mean += (rows - mean) / min(max(place, 1), 15)
    assert samples.rows == pytest.approx(mean)


@MANY
@given(
    st.dictionaries(st.integers(1, 9), SECONDS, min_size=1, max_size=4),
    st.none() | st.tuples(*[st.floats(0, 9)] * 3),
    st.integers(1, 32),
    st.lists(st.floats(1, 32), min_size=4, max_size=4),
)
def test_seconds_by_the_line_between_what_was_measured(known, abc, rows, sizes) -> None:
    """Point by point, as the docstring of CostMeter says."""
    own = {n: (known[n], size) for n, size in zip(sorted(known), sizes, strict=False)}
    a, b, c = abc or (0.0, 0.0, 0.0)

    def of(r: float, n: float) -> float:
        return a + b * r + c * r * n

    values = {n: seconds + of(rows, n) - of(size, n) for n, (seconds, size) in own.items()}
    least, most = min(values), max(values)
    share = values[least] / least
    if abc is not None:
        share = min(max(share, 0.8 * of(rows, 1)), values[least])
    points = {1: share} | values  # what was measured goes before what is guessed
    expected = []
    for n in range(1, 12):
        below, above = (
            max(k for k in points if k <= min(n, most)),
            min(k for k in points if k >= min(n, most)),
        )
        part = (min(n, most) - below) / max(above - below, 1)
        found = points[below] + part * (points[above] - points[below])
        if abc is not None:
            found += of(rows, max(n, most)) - of(rows, most)
            found = max(found, min(values.values()) / least)
        expected.append(found)
    plane_ = None if abc is None else (lambda r, n: np.asarray(a + b * r + c * r * n))
    found_ = _seconds(own, np.arange(1.0, 12.0), rows, plane_)
    np.testing.assert_allclose(found_, expected, rtol=1e-9, atol=1e-9)


@MANY
@given(st.tuples(*[st.floats(0.01, 9)] * 3))
def test_a_plane_is_found_again_and_never_falls(abc: tuple[float, float, float]) -> None:
    a, b, c = abc
    exact = {n: {1: (a + b * n + c * n, n), 5: (a + b * n + c * n * 5, n)} for n in (2.0, 9.0)}
    np.testing.assert_allclose(
        _fit(exact.values())(3.0, np.array([2.0, 7.0])),
        [a + 3 * b + 6 * c, a + 3 * b + 21 * c], rtol=1e-6,
    )  # fmt: skip
    falling = [{1: (1 + a, 1.0), 5: (1.0, 1.0)}, {1: (0.5, 9.0), 5: (0.3, 9.0)}]
    found = _fit(falling)
    assert (np.diff(found(2.0, np.arange(1.0, 9))) >= 0).all()
    assert found(1.0, np.ones(1))[0] <= found(9.0, np.ones(1))[0]


def test_tokens_of_all_rows_where_they_go_end_to_end() -> None:
    """Told by their number: what lies between two counts a row is on the line between them."""
    meter = crowded((2, 1), (2, 4))
    assert meter.costs(2, 4).batch_s is None
    assert meter.costs(1, 4, is_packed=True).batch_s is None
    costs = meter.costs(2, 4, is_packed=True)
    assert costs.batch_s is not None
    one, two, three, four = costs.target_s
    halves = [one, one, (one + two) / 2, two, (two + three) / 2, three, (three + four) / 2, four]
    np.testing.assert_allclose(costs.batch_s, halves)


def test_drafters_are_measured_by_step_and_reading_by_token() -> None:
    meter = metered(*[(1, 2.0), (4, 3.0)] * 2)
    assert meter.costs(1, 4).draft_s == {"a": 0.5}  # a quarter of plain decoding
    for _ in range(2):
        meter.saw_draft("a", 1, 4, 2.0)
        meter.saw_draft("a", 16, 4, 4.0)
        meter.saw_read("a", 8, 4.0)
    assert [meter.costs(rows, 1).draft_s["a"] for rows in (1, 16)] == [0.5, 1.0]
    assert meter.costs(1, 1).read_s == {"a": 0.5}
    assert metered((1, 1.0)).costs(1, 1).read_s == {}
