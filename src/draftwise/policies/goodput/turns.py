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


def needed(
    plans: Ints, forward_s: Floats, counts: Floats, drafters: Ints, draft_s: Floats
) -> tuple[Floats, Floats]:
    """[W] seconds of a round, drafting included, and the sum of all rows' counts.

    plans: [W, B], ways for the rows to play. forward_s: [W] seconds of verifying each of them.
    counts: [B, K] of each plan, the rounds of a token or the tokens of a round.
    """
    num_ways, num_rows = plans.shape
    if draft_s.any():
        longest = np.zeros((num_ways, int(drafters.max()) + 1))
        ways = np.arange(num_ways)[:, np.newaxis]
        np.maximum.at(longest, (ways, drafters[plans]), draft_s[plans])
        forward_s = forward_s + longest.sum(axis=1)
    return forward_s, counts[np.arange(num_rows), plans].sum(axis=1)


def longest_of_others(plans: Ints, drafters: Ints, draft_s: Floats) -> Floats:
    """[B, D] what ``longest_drafts`` would be without each row.

    >>> longest_of_others(np.array([1, 2, 0]), np.array([0, 1, 1]), np.array([0.0, 0.1, 0.4]))
    array([[0. , 0.4],
           [0. , 0.1],
           [0. , 0.4]])
    """
    own, own_s = drafters[plans], draft_s[plans]
    longest = longest_drafts(plans, drafters, draft_s)
    is_longest = own_s == longest[own]
    next_s = np.zeros(len(longest))
    np.maximum.at(next_s, own[~is_longest], own_s[~is_longest])
    next_s = np.where(np.bincount(own[is_longest], minlength=len(longest)) > 1, longest, next_s)
    found: Floats = np.repeat(longest[np.newaxis], len(plans), axis=0)
    found[np.arange(len(plans)), own] = np.where(is_longest, next_s[own], longest[own])
    return found


def one_by_one(
    plans: Ints,
    counts: Floats,
    drafters: Ints,
    draft_s: Floats,
    forward: Callable[[Ints, int], Floats],
    sign: int = 1,
) -> Ints:
    """[B] each row's best answer to the others, row after row, at what a round really takes.

    counts: as for ``needed``. forward: plans [B] and a row to the seconds [B - row, K] of
    verifying, for this row and those after it, each plan beside the others as they are. sign: 1
    where seconds times counts are lowered, -1 where seconds over counts are. All rows answer at
    once: up to the first that takes another plan nothing has changed for them, and those after it
    answer anew.
    """
    plans, rows, start = plans.copy(), np.arange(len(plans)), 0
    while start < len(plans):
        longest = longest_of_others(plans, drafters, draft_s)[start:]
        drafting_s = np.maximum(draft_s - longest.take(drafters, axis=1), 0.0)
        drafting_s += longest.sum(axis=1, keepdims=True)
        own = counts[rows, plans]
        sums = (own.sum() - own)[start:, np.newaxis] + counts[start:]
        answers = ((forward(plans, start) + drafting_s) * sums**sign).argmin(axis=1)
        changed = np.flatnonzero(answers != plans[start:])
        if not len(changed):
            break
        first = int(changed[0])
        plans[start + first] = answers[first]
        start += first + 1
    return plans
