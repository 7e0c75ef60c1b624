"""What joint choices share: rounds of a token, drafts that rows share, and rows taking turns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftwise.types import Floats, Ints

_NOTHING = 1e-6  # tokens of a plan that cannot be played, where no row may divide by zero


def rounds_of(tokens: Floats) -> Floats:
    """[B, K] rounds of a token: very many where a plan has nothing to propose."""
    rounds: Floats = 1 / np.maximum(tokens, _NOTHING)
    return rounds


def longest_drafts(plans: Ints, drafters: Ints, draft_s: Floats) -> Floats:
    """[D] seconds of each drafter's longest draft: one that drafts for a row drafts for all."""
    longest = np.zeros(int(drafters.max()) + 1)
    np.maximum.at(longest, drafters[plans], draft_s[plans])
    return longest


def one_by_one(
    plans: Ints, rounds: Floats, drafters: Ints, draft_s: Floats, forward: Callable[[Ints], Floats]
) -> Ints:
    """[B] each row's best answer to the others, row after row, at what a round really takes.

    forward: the other rows' plans to the [K] seconds of verifying them and each plan of this row.
    """
    plans, rows = plans.copy(), np.arange(len(plans))
    for row in rows:
        others = np.delete(plans, row)
        longest = longest_drafts(others, drafters, draft_s)
        drafting_s = longest.sum() + np.maximum(draft_s - longest[drafters], 0.0)
        all_rounds = rounds[np.delete(rows, row), others].sum() + rounds[row]
        plans[row] = ((forward(others) + drafting_s) * all_rounds).argmin()
    return plans
