"""Distributions over the vocabulary: exact with fractions, property tests with floats."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.engine.verify import draw, is_broken, mass, overlap, ratio, residual
from draftwise.types import Dist

EVERY = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def pairs(draw_: Any) -> tuple[Any, Any]:
    """Two distributions of fractions over one vocabulary, with zeros in them."""
    size = draw_(st.integers(1, 6))
    return tuple(draw_(dists(size)) for _ in range(2))  # type: ignore[return-value]


def dists(size: int) -> st.SearchStrategy[Any]:
    """A distribution of fractions, or a point mass given as a token."""
    weights = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    return weights.map(normalised) | st.integers(0, size - 1)


def normalised(weights: list[int]) -> Any:
    return np.array([Fraction(weight, sum(weights)) for weight in weights])


def spelt(dist: Dist, size: int) -> list[Any]:
    """The masses of all tokens as a list."""
    return [mass(dist, token) for token in range(size)]


def size_of(*dists: Dist) -> int:
    return max(dist + 1 if isinstance(dist, int) else len(dist) for dist in dists)


@EVERY
@given(pairs())
def test_residual_is_the_positive_part_of_the_difference(pair: tuple[Any, Any]) -> None:
    p, q = pair
    size = size_of(p, q)
    left = [max(a - b, 0) for a, b in zip(spelt(p, size), spelt(q, size), strict=True)]
    found = spelt(residual(p, q), size)
    if any(left) and not isinstance(p, int):
        assert found == [each / sum(left) for each in left]
    else:  # a rejection had probability 0, or there is only one token
        assert found == spelt(p, size)


@EVERY
@given(pairs())
def test_a_draw_that_is_accepted_or_made_up_for_follows_p(pair: tuple[Any, Any]) -> None:
    """min(p, q) + (1 - overlap) * residual = p: losslessness rests on this identity."""
    p, q = pair
    size = size_of(p, q)
    both = [min(a, b) for a, b in zip(spelt(p, size), spelt(q, size), strict=True)]
    rest = spelt(residual(p, q), size)
    assert [b + (1 - sum(both)) * r for b, r in zip(both, rest, strict=True)] == spelt(p, size)
    assert overlap(p, q) == pytest.approx(float(sum(both)))
    assert overlap(q, p) == overlap(p, q)


@EVERY
@given(pairs())
def test_ratios(pair: tuple[Any, Any]) -> None:
    p, q = pair
    for token in range(size_of(p, q)):
        of_p, of_q = mass(p, token), mass(q, token)
        assert ratio(p, q, token) == pytest.approx(min(1, of_q / Fraction(of_p)) if of_p else 0)


@EVERY
@given(dists(5), st.integers(0, 59))
def test_draws_take_each_token_for_as_long_as_its_mass(dist: Any, place: int) -> None:
    uniform = Fraction(place, 60)
    masses = spelt(dist, 5)
    ends = np.cumsum(masses)
    found = draw(dist, uniform)
    assert type(found) is int
    assert ends[found] - masses[found] <= uniform < ends[found]


@EVERY
@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_draws_from_floats_that_do_not_sum_to_one(weights: list[float], uniform: float) -> None:
    dist = np.array(weights, dtype=np.float32)
    found = draw(dist, uniform)
    assert dist[found] > 0
    before, behind = dist[:found].sum(dtype=np.float64), dist[: found + 1].sum(dtype=np.float64)
    asked = uniform * dist.sum(dtype=np.float64)
    assert before - 1e-9 <= asked <= behind + 1e-9


def test_a_draw_at_the_very_end_is_never_of_mass_zero() -> None:
    """Where rounding brings the uniform up to the total mass, the last token with mass is drawn."""
    almost = np.nextafter(1.0, 0.0)
    assert draw(np.array([0.5, 0.5, 0.0, 0.0]), 1.0) == 1
    assert draw(np.array([0.0, 5e-324, 0.0]), almost) == 1
    assert draw(np.array([1.0, 0.0]), 0.0) == 0
    assert draw(np.array([0.0, 1.0]), 0.0) == 1


def test_float32_is_summed_in_float64() -> None:
    """Masses that are each too small to change 1 in float32 must still be drawn."""
    dist = np.array([1.0, *[2.0**-25] * 1000], dtype=np.float32)
    total = 1 + 1000 * 2.0**-25
    for token in (1, 500, 1000):
        assert draw(dist, (1 + (token - 0.5) * 2.0**-25) / total) == token


def test_tokens_stand_for_themselves() -> None:
    for token in (3, np.int64(3)):
        assert (mass(token, 3), mass(token, 2)) == (1, 0)
        assert draw(token, 0.99) == 3
        assert residual(token, np.full(5, 0.2)) == 3
    p = np.array([0.25, 0.75])
    assert residual(p, np.int64(1)).tolist() == [1.0, 0.0]
    assert p.tolist() == [0.25, 0.75]  # unchanged
    assert residual(p, p) is p


def test_no_proposal_and_logits_that_were_not_finite() -> None:
    p = np.array([0.25, 0.75])
    assert overlap(p, -1) == overlap(-1, p) == overlap(-1, -1) == 0.0
    assert overlap(p, np.int64(1)) == overlap(np.int64(1), p) == 0.75
    assert (overlap(0, p), overlap(p, 0), overlap(0, 0), overlap(0, 1)) == (0.25, 0.25, 1.0, 0.0)
    assert [is_broken(dist) for dist in (-1, 0, 1, p)] == [True, False, False, False]
