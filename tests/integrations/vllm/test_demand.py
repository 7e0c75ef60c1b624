"""How many tokens a step verifies, by the drafts of recent steps."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.integrations.vllm.demand import Demand

ALL = np.arange(3)
"""Slots of requests."""


def rising(each: float, num: int) -> np.ndarray:
    return 1.0 + each * np.arange(num + 1)


@pytest.mark.parametrize("num", [1, 3, 64])
def test_a_budget_holds_the_tokens_that_are_worth_their_seconds(num: int) -> None:
    """Every request has one token of survival 0.9, one of 0.5 and one of 0.1."""
    demand, slots = Demand(4), np.arange(num)
    for _ in range(3):
        demand.observe(slots, np.tile([0.9, 0.5, 0.1, 0.0], (num, 1)), 3)
    for price, each in ((0.7, 1), (0.3, 2), (0.05, 3)):
        assert demand.budget(num, 3, rising(price, 4 * num), 1.0) == each * num
    assert demand.budget(num, 3, rising(0.05, 4 * num), 30.0) == 0


def test_one_draft_that_is_missing_does_not_end_the_budget() -> None:
    """The latest drafts are two steps old: a request without any is likely to have some again."""
    demand = Demand(4)
    for i in range(20):
        demand.observe(ALL[:1], np.array([[0.9, 0.8, 0.7, 0.6]]) * (i % 4 > 0), 0)
    demand.observe(ALL[:1], np.zeros((1, 4)), 0)
    assert demand.budget(1, 0, rising(0.3, 4), 1.0) == 4
    for _ in range(60):
        demand.observe(ALL[:1], np.zeros((1, 4)), 0)
    assert demand.budget(1, 0, rising(0.3, 4), 1.0) == 0


def test_a_budget_fits_another_number_of_requests() -> None:
    demand = Demand(4)
    demand.observe(ALL[:1], np.array([[0.9, 0.8, 0.1, 0.0]]), 0)
    assert demand.budget(8, 0, rising(0.5, 32), 1.0) == 16


def test_lengths_follow_each_request_and_its_room() -> None:
    demand = Demand(4)
    alive = np.array([[0.9, 0.85, 0.8, 0.75], [0.6, 0.2, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]])
    for _ in range(5):
        demand.observe(ALL, alive, 0)
    assert demand.lengths(ALL, [4, 4, 4], 0, rising(0.3, 12), 1.0) == [4, 1, 0]
    assert demand.lengths(ALL[[2, 0, 1]], [4, 2, 0], 0, rising(0.3, 12), 1.0) == [0, 2, 0]
    # tokens up to a stair are free, and the engine's limit holds
    assert demand.lengths(ALL, [4, 4, 4], 0, np.full(4, 1.0), 1.0) == [3, 0, 0]
    for _ in range(9):
        demand.observe(ALL[1:2], np.array([[0.9, 0.8, 0.7, 0.6]]), 0)
    assert demand.lengths(ALL[:2], [4, 4], 0, rising(0.3, 12), 1.0) == [4, 4]


def test_a_request_that_ended_leaves_nothing() -> None:
    demand = Demand(4)
    demand.observe(ALL[:1], np.array([[0.9, 0.8, 0.7, 0.6]]), 0)
    demand.end(0), demand.end(99)
    demand.observe(ALL[:1], np.zeros((1, 4)), 0)
    assert demand.lengths(ALL[:1], [4], 0, rising(0.3, 4), 1.0) == [0]


def test_drafts_of_another_length_of_the_model_have_their_own_means() -> None:
    demand = Demand(4)
    for _ in range(9):
        demand.observe(ALL[:2], np.tile([0.9, 0.8, 0.7, 0.0], (2, 1)), 3)
    demand.observe(ALL[:2], np.zeros((2, 4)), 0)
    assert demand.budget(2, 3, rising(0.3, 8), 1.0) == 6
    assert demand.budget(2, 0, rising(0.3, 8), 1.0) == 0
    assert demand.lengths(ALL[:2], [4, 4], 3, rising(0.3, 8), 1.0) == [3, 3]
    assert [demand.knows(head) for head in range(5)] == [True, False, False, True, False]
    demand.observe(ALL[2:], np.array([[0.9, 0.8, 0.0, 0.0]]), 0)
    # nothing newer is known
    assert demand.lengths(ALL[2:], [4], 3, rising(0.3, 8), 1.0) == [2]
