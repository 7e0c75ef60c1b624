"""Rows that are verified side by side: their plans against all there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftwise.policies.goodput.ragged import best_ragged

SIZES = np.array([0, 1, 3, 6, 1, 3])
DRAFTERS = np.array([0, 1, 1, 1, 2, 2])


def seconds_a_token(plans, tokens, draft_s, batch_s) -> float:
    total = len(plans) + int(SIZES[plans].sum())
    longest = np.zeros(3)
    np.maximum.at(longest, DRAFTERS[plans], draft_s[plans])
    return (batch_s[total - 1] + longest.sum()) * float(
        (1 / tokens[range(len(plans)), plans]).sum()
    )


@pytest.mark.parametrize("price", [0.0, 0.03, 0.3])
def test_nearly_the_best_of_all(price: float) -> None:
    """On average within 2% of the best of all 6^4 choices, and never above plain decoding."""
    rng = np.random.default_rng(3)
    batch_s, losses = 1.0 + price * np.arange(28), []
    draft_s = np.array([0.0, 0.0, 0.0, 0.0, 0.05, 0.15])
    for _ in range(30):
        alphas = rng.uniform(0.05, 0.98, size=(4, 3))
        tokens = (1 - alphas[:, DRAFTERS] ** (SIZES + 1)) / (1 - alphas[:, DRAFTERS])
        found = best_ragged(tokens, SIZES, DRAFTERS, draft_s, batch_s)
        all_plans = [np.array(plans) for plans in itertools.product(range(6), repeat=4)]
        costs = [seconds_a_token(plans, tokens, draft_s, batch_s) for plans in all_plans]
        own = seconds_a_token(found, tokens, draft_s, batch_s)
        losses.append(own / min(costs) - 1)
        assert own <= seconds_a_token(np.zeros(4, dtype=int), tokens, draft_s, batch_s) + 1e-9
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
