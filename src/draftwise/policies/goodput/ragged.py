"""Plans for rows whose drafts are verified side by side, no longer than they are."""

from __future__ import annotations

import numpy as np

from draftwise.policies.goodput.turns import longest_drafts, one_by_one, rounds_of
from draftwise.types import Floats, Ints

WIDTHS = (1, 2, 4, 8, 16)
"""Mean draft lengths at which the price of a verified token is read off, one after another."""

NUM_STEPS = 3
"""Of the iteration, for each price."""

FEW_ROWS = 16
"""Rows up to which each in turn takes its best plan in the end: prices are those of small steps."""


def best_ragged(
    tokens: Floats, sizes: Ints, drafters: Ints, draft_s: Floats, batch_s: Floats
) -> Ints:
    """[B] plans with which the rows of a batch get on fastest where verification is ragged.

    tokens, sizes, drafters, draft_s: as for ``best_together``. batch_s: [n] seconds of a target
    forward over 1, 2, .. tokens of all rows together; a larger one costs what the last does.

    Source: this project's own. As in ``best_together`` S * sum(1 / tokens) is lowered, but a round
        lasts as long as its tokens in all: S = T(B + sum of sizes) + sum over drafters of their
        longest draft (a drafter that drafts for one row drafts for all).
    Update: none. With a price for a token each row chooses for itself: it takes the plan with the
        least (price size + drafting) / S + (1 / tokens) / Q, S and Q = sum(1 / tokens) being those
        of the step before. Prices are the mean slopes of T over 1, 2, 4, 8 and 16 tokens a row; a
        drafter's seconds are split among the rows that played it in the step before (at first all),
        and once more without those that take time. The best that was seen is kept.
        Up to 16 rows then take, one after another, their best plan while the others stay.
    Cost: O(B K) for each of 15 or 30 steps. Plain decoding for all is among what is compared.

    Of two rows one has a good draft: the other need not draft because of it.

    >>> tokens = np.array([[1.0, 4.0], [1.0, 1.1]])
    >>> plans = np.array([0, 8]), np.array([0, 1]), np.zeros(2)
    >>> best_ragged(tokens, *plans, np.linspace(1.0, 1.5, 18)).tolist()
    [1, 0]
    """
    rounds = rounds_of(tokens)
    rows, plain = np.arange(len(tokens)), int(sizes.argmin())
    best = np.full(len(tokens), plain)

    is_dear = draft_s > 0
    any_dear = bool(is_dear.any())

    def seconds(plans: Ints) -> float:
        total = min(len(plans) + int(sizes[plans].sum()), len(batch_s))
        drafting_s = longest_drafts(plans, drafters, draft_s).sum() if any_dear else 0.0
        return float(batch_s[total - 1] + drafting_s)

    def forward(others: Ints) -> Floats:
        totals = len(others) + 1 + int(sizes[others].sum()) + sizes
        taken: Floats = batch_s[np.minimum(totals, len(batch_s)) - 1]
        return taken

    plain_s, plain_rounds = seconds(best), float(rounds[rows, best].sum())
    lowest = plain_s * plain_rounds
    for is_allowed in (True, False) if any_dear else (True,):
        for width in WIDTHS:
            tried, tried_s, tried_rounds = np.full(len(tokens), plain), plain_s, plain_rounds
            payers = np.full(int(drafters.max()) + 1, len(tokens))
            price = _slope(batch_s, len(tokens), width)
            for _ in range(NUM_STEPS):
                drafting_s = np.where(
                    is_dear, draft_s / payers[drafters] if is_allowed else np.inf, 0.0
                )
                prices = (price * sizes + drafting_s) * (tried_rounds / tried_s)
                tried = (rounds + prices).argmin(axis=1)
                payers = np.maximum(np.bincount(drafters[tried], minlength=len(payers)), 1)
                tried_s, tried_rounds = seconds(tried), float(rounds[rows, tried].sum())
                if tried_s * tried_rounds < lowest:
                    best, lowest = tried, tried_s * tried_rounds
    if len(tokens) <= FEW_ROWS:
        best = one_by_one(best, rounds, drafters, draft_s, forward)
    return best


def _slope(batch_s: Floats, rows: int, width: int) -> float:
    """Seconds of one more token, on average over ``width`` more a row."""
    first = min(rows, len(batch_s)) - 1
    last = min(rows * (1 + width), len(batch_s)) - 1
    return float(batch_s[last] - batch_s[first]) / max(last - first, 1)
