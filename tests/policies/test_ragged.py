"""Rows that are verified side by side: their plans against all there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.policies.goodput.ragged import FEW_ROWS, NUM_STEPS, WIDTHS, best_ragged

SIZES = np.array([0, 1, 3, 6, 1, 3])
DRAFTERS = np.array([0, 1, 1, 1, 2, 2])


def seconds_a_token(plans, tokens, draft_s, batch_s, paces) -> float:
    total = len(plans) + int(SIZES[plans].sum())
    longest = np.zeros(3)
    np.maximum.at(longest, DRAFTERS[plans], draft_s[plans])
    own = tokens[range(len(plans)), plans]
    needed = float((1 / own).sum()) if paces is None else 1 / float((own / paces).sum())
    return (batch_s[total - 1] + longest.sum()) * needed


@pytest.mark.parametrize("come_and_go", [False, True])
@pytest.mark.parametrize("price", [0.0, 0.03, 0.3])
def test_nearly_the_best_of_all(price: float, come_and_go: bool) -> None:
    """On average within 2% of the best of all 6^4 choices, and never above plain decoding."""
    rng = np.random.default_rng(3)
    batch_s, losses = 1.0 + price * np.arange(28), []
    draft_s = np.array([0.0, 0.0, 0.0, 0.0, 0.05, 0.15])
    for _ in range(30):
        alphas = rng.uniform(0.05, 0.98, size=(4, 3))
        tokens = (1 - alphas[:, DRAFTERS] ** (SIZES + 1)) / (1 - alphas[:, DRAFTERS])
        known = tokens, draft_s, batch_s, rng.uniform(1.0, 4.0, 4) if come_and_go else None
        found = best_ragged(tokens, SIZES, DRAFTERS, *known[1:])
        all_plans = [np.array(plans) for plans in itertools.product(range(6), repeat=4)]
        costs = [seconds_a_token(plans, *known) for plans in all_plans]
        own = seconds_a_token(found, *known)
        losses.append(own / min(costs) - 1)
        assert own <= seconds_a_token(np.zeros(4, dtype=int), *known) + 1e-9
    assert np.mean(losses) < 0.02


def test_a_plan_without_a_proposal_is_not_played() -> None:
    tokens = np.array([[1.0, 0.0, 0.0, 0.0, 1.5, 2.0]])
    found = best_ragged(tokens, SIZES, DRAFTERS, np.zeros(6), np.ones(8))
    assert found.tolist() == [5]


def test_the_more_a_token_costs_the_shorter_are_drafts() -> None:
    alphas = np.full((8, 6), 0.8)
    tokens = (1 - alphas ** (SIZES + 1)) / (1 - alphas)
    drafted = [
        int(SIZES[best_ragged(tokens, SIZES, DRAFTERS, np.zeros(6), 1 + c * np.arange(56))].sum())
        for c in (0.0, 0.03, 0.1, 1.0)
    ]
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[0] == 48
    assert drafted[-1] == 0


def test_a_long_match_of_one_round_counts_whole_where_places_are_filled_again() -> None:
    """Four tokens more for three quarters of a round's seconds."""
    tokens = np.array([[1.0, 5.0]] + [[1.0, 0.0]] * 3)
    plans, batch_s = (np.array([0, 8]), np.array([0, 1]), np.zeros(2)), np.array([1.0] * 4 + [1.75])
    assert best_ragged(tokens, *plans, batch_s, np.ones(4)).tolist() == [1, 0, 0, 0]
    assert best_ragged(tokens, *plans, batch_s).tolist() == [0] * 4


def test_tokens_of_a_slow_row_count_more() -> None:
    """Of two rows with the same draft, at a price at which one of them pays."""
    tokens, plans = np.array([[1.0, 2.0]] * 2), (np.array([0, 4]), np.array([0, 1]), np.zeros(2))
    for paces, expected in (((4.0, 1.0), [0, 1]), ((1.0, 4.0), [1, 0])):
        found = best_ragged(tokens, *plans, 1 + 0.12 * np.arange(10), np.array(paces))
        assert found.tolist() == expected


def in_turn(best, plans, cost) -> list[int]:
    """Each row's best plan while the others stay."""
    for row in range(len(best)):
        answers = [cost([*best[:row], plan, *best[row + 1 :]]) for plan in plans]
        best = [*best[:row], answers.index(min(answers)), *best[row + 1 :]]
    return best


def counts_of(tokens, paces) -> list[list[float]]:
    """Rounds of a token, or tokens of a round in those of its row."""
    if paces is None:
        return [[1 / max(num, 1e-6) for num in row] for row in tokens]
    return [[max(num, 1e-6) / pace for num in row] for row, pace in zip(tokens, paces, strict=True)]


def by_the_book(counts, sizes, drafters, draft_s, batch_s, sign) -> list[int]:
    """The docstring's update in plain loops."""
    rows, plans = range(len(counts)), range(len(sizes))
    plain = min(plans, key=lambda plan: sizes[plan])

    def target_s(num: int) -> float:
        return batch_s[min(num, len(batch_s)) - 1]

    def seconds(chosen: list[int]) -> float:
        longest: dict[int, float] = {}
        for plan in chosen:
            name = drafters[plan]
            longest[name] = max(longest.get(name, 0.0), draft_s[plan])
        return target_s(len(rows) + sum(sizes[plan] for plan in chosen)) + sum(longest.values())

    def counted(chosen: list[int]) -> float:
        return sum(counts[row][plan] for row, plan in enumerate(chosen))

    def cost(chosen: list[int]) -> float:
        return seconds(chosen) * counted(chosen) ** sign

    best = [plain] * len(rows)
    for free_only in (False, True) if any(s > 0 for s in draft_s) else (False,):
        for width in (1, 2, 4, 8, 16):
            tried, payers = [plain] * len(rows), dict.fromkeys(drafters, len(rows))
            end, start = (min(len(rows) * n, len(batch_s)) for n in (1 + width, 1))
            price = (target_s(end) - target_s(start)) / max(end - start, 1)
            for _ in range(3):
                lasts = seconds(tried) / counted(tried)
                bills = [
                    [
                        sign * counts[row][plan]
                        + (price * sizes[plan] + draft_s[plan] / payers[drafters[plan]]) / lasts
                        if draft_s[plan] == 0 or not free_only
                        else np.inf
                        for plan in plans
                    ]
                    for row in rows
                ]
                tried = [bill.index(min(bill)) for bill in bills]
                names = [drafters[plan] for plan in tried]
                payers = {name: max(names.count(name), 1) for name in drafters}
                if cost(tried) < cost(best) * (1 - 1e-12):
                    best = tried
    return in_turn(best, plans, cost) if len(rows) <= FEW_ROWS else best


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 60), st.sampled_from([0.0, 1.0]), st.integers(0, 2**32))
def test_every_step_against_plain_loops(num: int, known: int, dear: float, seed: int) -> None:
    assert (NUM_STEPS, WIDTHS) == (3, (1, 2, 4, 8, 16))
    check(num, known, dear, np.random.default_rng(seed))


@pytest.mark.parametrize("num", [16, 17])
def test_more_than_sixteen_rows_do_not_take_turns(num: int) -> None:
    assert FEW_ROWS == 16
    rng = np.random.default_rng(num)
    for _ in range(12):
        check(num, int(rng.integers(num, 6 * num)), 1.0, rng)
        check(num, num + 1, 1.0, rng)  # all prices are the slope of one more token


def check(num: int, known: int, dear: float, rng: np.random.Generator) -> None:
    """Random rows: the same as in plain loops."""
    tokens = rng.uniform(0.0, 6.0, size=(num, 6)) * (rng.random((num, 6)) < 0.9)
    draft_s = dear * rng.choice([0.0, 1.0], 6) * rng.uniform(0.01, 0.6, 6)
    batch_s = 1 + np.cumsum(rng.uniform(0, 0.2, known))
    sizes = np.array([0, *rng.integers(1, 9, 5)])
    known = tuple(each.tolist() for each in (sizes, DRAFTERS, draft_s, batch_s))
    for paces, sign in ((None, 1), (rng.uniform(1.0, 5.0, num), -1)):
        found = best_ragged(tokens, sizes, DRAFTERS, draft_s, batch_s, paces)
        assert found.tolist() == by_the_book(counts_of(tokens, paces), *known, sign)
