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


def test_survival_is_corrected_by_what_became_of_it() -> None:
    """Tokens of survival 0.9 are accepted as expected, those of 0.6 half as often."""
    demand, slots = Demand(4), np.arange(20)
    alive = np.tile([0.9, 0.6, 0.6, 0.0], (20, 1))
    kept = np.repeat([0, 1, 3], [2, 12, 6])  # 0.9 of the first tokens, 0.3 of the next two
    for _ in range(100):
        demand.learn(alive, np.full(20, 3), kept)
    for _ in range(3):
        demand.observe(slots, alive, 3)
    for price, each in ((0.8, 1), (0.35, 1), (0.25, 3)):
        assert demand.budget(20, 3, rising(price, 80), 1.0) == each * 20


def test_unverified_tokens_teach_nothing() -> None:
    demand, slots = Demand(4), np.arange(8)
    alive = np.tile([0.9, 0.6, 0.0, 0.0], (8, 1))
    for _ in range(100):
        demand.learn(alive, np.ones(8, np.int64), np.repeat([0, 1], [1, 7]))
    demand.observe(slots, alive, 2)
    assert demand.budget(8, 2, rising(0.55, 32), 1.0) == 16


def test_the_head_has_the_length_that_is_worth_most() -> None:
    """A length that was not tried lately is tried if the controller wants it."""
    demand, slots = Demand(4), np.arange(8)
    alive = {1: [0.9, 0.0, 0.0, 0.0], 3: [0.9, 0.8, 0.7, 0.0]}
    for head in (1, 3):
        demand.observe(slots, np.tile(alive[head], (8, 1)), head)

    def head(wanted: int, price: float, draft_s: float) -> int:
        return demand.head(8, wanted, rising(price, 32), 1.0, lambda num: draft_s * num)

    assert head(1, 0.3, 1.0) == head(3, 0.3, 1.0) == 3
    assert head(1, 0.3, 8 * 0.5) == head(3, 0.3, 8 * 0.5) == 1
    assert head(1, 0.75, 1.0) == head(3, 0.75, 1.0) == 1
    assert head(2, 0.3, 1.0) == 2
    for _ in range(70):
        demand.observe(slots, np.tile(alive[1], (8, 1)), 1)
    assert (head(1, 0.3, 8 * 0.5), head(3, 0.3, 8 * 0.5)) == (1, 3)
