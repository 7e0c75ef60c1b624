"""Costs and expected tokens of plans: by hand, and for arbitrary seconds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.controller.goodput import PlanCosts, expected_tokens, retrieved_tokens
from draftwise.types import NONE, Costs, Plan

PLANS = [Plan(NONE, 0), Plan("a", 1), Plan("a", 3), Plan("b", 2)]
SECONDS = st.floats(1e-6, 1e3)


def test_by_hand() -> None:
    costs = PlanCosts(PLANS)
    costs.take(Costs(np.array([2.0, 3.0, 5.0]), {"a": 0.25}, {"a": 0.125}))
    assert costs.names == ["a", "b", NONE]
    assert costs.draft_s.tolist() == [0.25, 0.05 * 2, 0.0]
    growth = (5 / 2 - 1) / 2
    assert costs.read_s.tolist() == pytest.approx([0.125, growth * 0.1, 0.0])
    assert costs.seconds.tolist() == pytest.approx([2.0, 3.25, 5.75, 5.2])
    assert [places.tolist() for places in costs.places] == [[1, 2], [3], [0]]
    costs.take(Costs(np.array([2.0, 5.0]), {"b": 0.5}))
    assert costs.read_s.tolist() == pytest.approx([1.5 * 0.1, 1.5 * 0.5, 0.0])
    costs.take(Costs(np.array([4.0]), {"b": 0.5}))
    assert costs.read_s.tolist() == [0.0, 0.0, 0.0]


def test_nothing_measured_is_a_second_a_forward() -> None:
    costs = PlanCosts(PLANS)
    assert costs.target_s == [1.0]
    assert costs.seconds.tolist() == pytest.approx([1.0, 1.05, 1.15, 1.1])
    costs.take(Costs(np.array([0.0, 3.0]), {}))
    assert costs.target_s == [1e-12, 3.0]


def test_the_longest_draft_is_at_least_one() -> None:
    assert PlanCosts(PLANS).longest == 3
    assert PlanCosts([Plan(NONE, 0)]).longest == 1
    assert PlanCosts(PLANS[:2]).longest == 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(SECONDS, min_size=1, max_size=6),
    st.dictionaries(st.sampled_from("ab"), SECONDS),
    st.dictionaries(st.sampled_from("ab"), SECONDS),
)
def test_seconds_are_those_of_the_latest_costs(target_s, draft_s, read_s) -> None:
    costs = PlanCosts(PLANS)
    costs.take(Costs(np.array(target_s), draft_s, read_s))
    expected = [
        target_s[min(plan.num_tokens, len(target_s) - 1)]
        + plan.length * draft_s.get(plan.drafter, 0.05 * target_s[0])
        for plan in PLANS
    ]
    assert costs.seconds.tolist() == pytest.approx(expected)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(0, 1), st.integers(0, 20))
def test_expected_tokens_are_the_sum(rate: float, length: int) -> None:
    found = expected_tokens(np.array([rate]), np.array([length])).item()
    assert found == pytest.approx(sum(rate**i for i in range(length + 1)), rel=1e-5)
    if rate == 1.0:
        assert found == pytest.approx(length + 1, rel=1e-7)


def test_certain_acceptance_is_all_tokens() -> None:
    assert expected_tokens(np.ones(2), np.array([3, 8])).tolist() == pytest.approx([4, 9], rel=1e-7)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(-1, 12), st.data())
def test_retrieved_tokens_climb_the_ladder(ladder: list[float], match: int, data) -> None:
    longest = data.draw(st.integers(0, len(ladder)))
    found = retrieved_tokens(ladder, match, longest)
    assert len(found) == longest + 1
    if match <= 0:
        assert not any(found)
        return
    first = min(match - 1, len(ladder) - longest)
    for length, tokens in enumerate(found):
        steps = [math.prod(ladder[first : first + k]) for k in range(length + 1)]
        assert tokens == pytest.approx(sum(steps))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"target_s": np.array([4.0, 6.0])}, [4.0, 6.25, 6.75, 6.5]),
        ({"target_s": np.array([2.0, 6.0])}, [2.0, 6.25, 6.75, 6.5]),
        ({"target_s": np.array([2.0])}, [2.0, 2.25, 2.75, 2.5]),
        ({"draft_s": {"a": 1.0, "b": 0.25}}, [2.0, 4.0, 6.0, 3.5]),
        ({"draft_s": {"a": 0.25}}, [2.0, 3.25, 3.75, 3.2]),  # b: 5% of 2 s
    ],
)
def test_a_change_of_one_part_of_the_costs_is_taken(changed, expected: list[float]) -> None:
    before = {"target_s": np.array([2.0, 3.0]), "draft_s": {"a": 0.25, "b": 0.25}}
    costs = PlanCosts(PLANS)
    costs.take(Costs(**before))
    assert costs.seconds.tolist() == pytest.approx([2.0, 3.25, 3.75, 3.5])
    costs.take(Costs(**(before | changed)))
    assert costs.seconds.tolist() == pytest.approx(expected)


def test_new_seconds_of_catching_up_are_taken_alone() -> None:
    costs = PlanCosts(PLANS)
    for read_s in (0.5, 0.125):
        costs.take(Costs(np.array([2.0]), {"a": 0.25}, {"a": read_s}))
        assert costs.read_s.tolist() == [read_s, 0.0, 0.0]
