"""Choices for many rows at once, against the slow forms that they stand for."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.policies.goodput.acceptance import Rates
from draftwise.policies.goodput.matches import MatchTable
from draftwise.policies.goodput.pricing import PlanCosts
from draftwise.policies.goodput.ragged import best_ragged
from draftwise.policies.goodput.rows import best_plans, tokens_of_rows
from draftwise.policies.goodput.together import NUM_STEPS, best_together
from draftwise.policies.goodput.turns import longest_drafts, longest_of_others
from draftwise.types import NONE, Costs, Plan

PLANS = [Plan(NONE, 0), *(Plan(name, k) for name in ("lm", "lookup") for k in (1, 2, 4))]


def drawn(rng: np.random.Generator, num: int) -> tuple[Any, ...]:
    """Rows, plans and seconds; some plans have nothing to propose, some drafts are free."""
    num_plans = int(rng.integers(2, 12))
    drafters = np.array([0, *rng.integers(1, 4, num_plans - 1)])
    sizes = np.array([0, *rng.integers(1, 9, num_plans - 1)])
    step_s = rng.choice([0.0, 1.0], 4) * rng.uniform(0.01, 0.2, 4)
    tokens = 1.0 + rng.random((num, num_plans)) * sizes
    tokens[:, 1:] *= rng.random((num, num_plans - 1)) < 0.9
    target_s = 1.0 + np.cumsum(rng.uniform(0.0, 0.3, 9))
    return tokens, sizes, drafters, sizes * step_s[drafters], target_s


def starts(order: Any, sizes: Any, draft_s: Any, share: float, rounds: Any) -> list[list[int]]:
    """Each row's best plan of those up to each width, with drafters that take time and without."""
    found = []
    for prices in ([share * s for s in draft_s], [1e9 * (s > 0) for s in draft_s]):
        for widest in sorted(set(sizes)):
            allowed = [plan for plan in order if sizes[plan] <= widest]
            found.append([])
            for row in rounds:
                costs = [row(plan) + prices[plan] for plan in allowed]
                found[-1].append(allowed[costs.index(min(costs))])
    return found


def by_the_book(tokens: Any, sizes: Any, drafters: Any, draft_s: Any, target_s: Any) -> list[int]:
    """The docstring of ``best_together`` in plain loops."""
    plans, rows = range(len(sizes)), range(len(tokens))

    def seconds(chosen: list[int]) -> float:
        longest: dict[int, float] = {}
        for plan in chosen:
            longest[drafters[plan]] = max(longest.get(drafters[plan], 0.0), draft_s[plan])
        return target_s[max(sizes[plan] for plan in chosen)] + sum(longest.values())

    def rounds(row: int, plan: int) -> float:
        return 1 / max(tokens[row][plan], 1e-6)

    def cost(chosen: list[int]) -> float:
        return seconds(chosen) * sum(rounds(row, plan) for row, plan in enumerate(chosen))

    order = sorted(plans, key=lambda plan: sizes[plan])
    tried = [order[0]] * len(rows)
    share = sum(rounds(row, order[0]) for row in rows) / seconds(tried) / len(rows)
    best = min(
        starts(order, sizes, draft_s, share, [partial(rounds, row) for row in rows]), key=cost
    )
    payers = dict.fromkeys(drafters, len(rows))
    for _ in range(NUM_STEPS):
        needed, lasts = sum(rounds(row, plan) for row, plan in enumerate(tried)), seconds(tried)

        def gain(row: int, plan: int, now: Any = (tried, needed, lasts, payers)) -> float:
            present, needed, lasts, payers = now
            worth = rounds(row, present[row]) ** 2 / needed
            share_s = draft_s[plan] / payers[drafters[plan]]
            return worth * tokens[row][plan] - share_s / lasts if tokens[row][plan] else -np.inf

        ways = []
        for width in range(1, len(order) + 1):
            chosen = [max(order[:width], key=lambda p, row=row: gain(row, p)) for row in rows]
            total = sum(gain(row, plan) for row, plan in zip(rows, chosen, strict=True))
            ways.append((total - target_s[sizes[order[width - 1]]] / lasts, chosen))
        tried = max(ways, key=lambda way: way[0])[1]
        names = [drafters[plan] for plan in tried]
        payers = {name: max(names.count(name), 1) for name in drafters}
        if cost(tried) < cost(best) * (1 - 1e-12):
            best = tried
    for row in rows:
        answers = [cost([*best[:row], plan, *best[row + 1 :]]) for plan in plans]
        best = [*best[:row], answers.index(min(answers)), *best[row + 1 :]]
    return best


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(1, 6), st.integers(0, 2**32))
def test_rows_that_share_a_forward_against_plain_loops(num: int, seed: int) -> None:
    world = drawn(np.random.default_rng(seed), num)
    found = best_together(*world)
    assert found.tolist() == by_the_book(*(part.tolist() for part in world))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 2**32))
def test_the_longest_drafts_of_all_others(plans: list[int], seed: int) -> None:
    drafters = np.array([0, 1, 1, 2, 2, 2])
    draft_s = np.random.default_rng(seed).choice([0.0, 0.1, 0.2], 6)
    found = longest_of_others(np.array(plans), drafters, draft_s)
    expected = [
        longest_drafts(np.array(plans[:row] + plans[row + 1 :], dtype=int), drafters, draft_s)
        for row in range(len(plans))
    ]
    assert found.tolist() == np.array(expected).tolist()


def rows(num: int) -> tuple[list[Rates], list[dict[str, MatchTable]], list[dict[str, int]]]:
    """The first row has a long match that copies well; none knows a good drafter."""
    tables = [{"lookup": MatchTable()} for _ in range(num)]
    tables[0]["lookup"].add([1.0] * 20, [20] * 20)
    rates = [Rates(3, 0.97) for _ in range(num)]
    for own in rates:
        own.add(0, [0.0] * 60)
    return rates, tables, [{"lookup": 20}, *({"lookup": 0} for _ in range(num - 1))]


def test_what_rows_may_do_depends_on_how_they_are_verified() -> None:
    """Where rows are padded a long draft makes all wait; else it costs its tokens."""
    costs, known = PlanCosts(PLANS), rows(12)
    padded_s, packed_s = np.linspace(1.0, 2.0, 5), np.linspace(1.0, 1.2, 60)
    costs.take(Costs(padded_s, {"lm": 0.3, "lookup": 0.0}))
    plans = tokens_of_rows(costs, *known), costs.sizes, costs.drafters, costs.drafting()
    padded = best_plans(costs, *known)
    assert padded.tolist() == best_together(*plans, padded_s).tolist() == [0] * 12
    costs.take(Costs(padded_s, {"lm": 0.3, "lookup": 0.0}, packed_s))
    packed = best_plans(costs, *known)
    assert packed.tolist() == best_ragged(*plans, packed_s).tolist() == [6] + [0] * 11


@pytest.mark.parametrize("matches", [{}, {"lookup": 0}])
def test_a_row_without_a_match_has_nothing_to_retrieve(matches: dict[str, int]) -> None:
    costs = PlanCosts(PLANS)
    rates, tables, _ = rows(2)
    tokens = tokens_of_rows(costs, rates, tables, [{"lookup": 1}, matches])
    assert (tokens[0, 4:] > 1).all()
    assert tokens[1, 4:].tolist() == [0.0] * 3
