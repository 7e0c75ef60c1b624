"""Plans for rows whose drafts are verified side by side, no longer than they are."""

from __future__ import annotations

import numpy as np

from draftwise.policies.goodput.turns import needed, one_by_one, rounds_of
from draftwise.types import Floats, Ints

WIDTHS = (1, 2, 4, 8, 16)
"""Mean draft lengths at which the price of a verified token is read off, one after another."""

NUM_STEPS = 3
"""Of the iteration, for each price."""

FEW_ROWS = 16
"""Rows up to which each in turn takes its best plan in the end: prices are those of small steps."""


def best_ragged(
    tokens: Floats, sizes: Ints, drafters: Ints, draft_s: Floats, batch_s: Floats,
    paces: Floats | None = None,
) -> Ints:  # fmt: skip
    """[B] plans with which the rows of a batch get on fastest where verification is ragged.

    tokens, sizes, drafters, draft_s: as for ``best_together``. batch_s: [n] seconds of a target
    forward over 1, 2, .. tokens of all rows together; a larger one costs what the last does.
    paces: [B] tokens that each row emits a round, on average, where rows come and go; None where
    they began together.

    Source: this project's own. Rows that began together end with the slowest, so as in
        ``best_together`` S * sum(1 / tokens) is lowered. Where the place of a row that ends is
        taken by another, all tokens count: the seconds of a round's tokens, S / sum(tokens / pace),
        are lowered, since a token saves its row 1 / pace rounds to come; by the former a row with a
        long match in this round alone would gain less than a round. S = T(B + sum of sizes) + sum
        over drafters of their longest draft (a drafter that drafts for one row drafts for all).
    Update: none. With a price for a token each row chooses for itself: it takes the plan with the
        least (price size + drafting) / S + (1 / tokens) / Q, or - (tokens / pace) / Q, S and the
        sum Q being those of the step before. Prices are the mean slopes of T over 1, 2, 4, 8 and 16
        tokens a row; a drafter's seconds are split among the rows that played it in the step before
        (at first all), and once more without those that take time. The best that was seen is kept.
        Up to 16 rows then take, one after another, their best plan while the others stay.
    Cost: O(B K) for each of 15 or 30 steps. Plain decoding for all is among what is compared.

    Of two rows one has a good draft: the other need not draft because of it.

    >>> tokens = np.array([[1.0, 4.0], [1.0, 1.1]])
    >>> plans = np.array([0, 8]), np.array([0, 1]), np.zeros(2)
    >>> best_ragged(tokens, *plans, np.linspace(1.0, 1.5, 18)).tolist()
    [1, 0]
    """
    counts, rows, sign = rounds_of(tokens), np.arange(len(tokens)), 1
    if paces is not None:
        counts, sign = 1 / (counts * paces[:, np.newaxis]), -1
    taxes = np.where(draft_s > 0, [[0.0], [np.inf]], 0.0)[: 2 if draft_s.any() else 1]
    slopes = np.array([_slope(batch_s, len(tokens), width) for width in WIDTHS])
    prices = (taxes[:, np.newaxis] + slopes[:, np.newaxis] * sizes).reshape(-1, len(sizes))
    ways, num_drafters = np.arange(len(prices))[:, np.newaxis], int(drafters.max()) + 1

    def taking(plans: Ints) -> tuple[Ints, Floats, Floats]:
        totals = np.minimum(len(rows) + sizes[plans].sum(axis=1), len(batch_s))
        return plans, *needed(plans, batch_s[totals - 1], counts, drafters, draft_s)

    tried = np.full((len(prices), len(tokens)), int(sizes.argmin()))
    payers = np.full((len(prices), num_drafters), len(tokens))
    seen = [taking(tried)]
    for _ in range(NUM_STEPS):
        _, seconds, sums = seen[-1]
        own = (prices + draft_s / payers[:, drafters]) * (sums / seconds)[:, np.newaxis]
        tried = (sign * counts + own[:, np.newaxis]).argmin(axis=2)
        played = (drafters[tried] + num_drafters * ways).ravel()
        payers = np.bincount(played, minlength=payers.size).reshape(payers.shape).clip(min=1)
        seen.append(taking(tried))
    costs = np.array([seconds * sums**sign for _, seconds, sums in seen])
    way, step = divmod(int(costs.T.argmin()), len(seen))
    best: Ints = seen[step][0][way]

    def forward(plans: Ints, row: int) -> Floats:
        others = len(plans) + sizes[plans].sum() - sizes[plans[row:]]
        totals = np.minimum(others[:, np.newaxis] + sizes, len(batch_s))
        taken: Floats = batch_s[totals - 1]
        return taken

    few = len(rows) <= FEW_ROWS
    return one_by_one(best, counts, drafters, draft_s, forward, sign) if few else best


def _slope(batch_s: Floats, rows: int, width: int) -> float:
    """Seconds of one more token, on average over ``width`` more a row."""
    first = min(rows, len(batch_s)) - 1
    last = min(rows * (1 + width), len(batch_s)) - 1
    return float(batch_s[last] - batch_s[first]) / max(last - first, 1)
