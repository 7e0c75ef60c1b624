"""Plans for rows that verify in one forward: what is best for all of them together."""

from __future__ import annotations

import numpy as np

from draftwise.policies.goodput.turns import longest_drafts, needed, one_by_one, rounds_of
from draftwise.types import Floats, Ints

NUM_STEPS = 6
"""Of the iteration, which gains nothing visible after the fourth."""

_DEAR = 1e9  # rounds: more than those of a plan that cannot be played


def best_together(
    tokens: Floats, sizes: Ints, drafters: Ints, draft_s: Floats, target_s: Floats
) -> Ints:
    """[B] plans with which the rows of a batch get on fastest.

    tokens: [B, K] expected emitted tokens of each row's plans, 0 = cannot be played. sizes: [K]
    tokens that a plan gives the target to verify. drafters: [K] row of the drafter. draft_s: [K]
    seconds that drafting takes. target_s: [n] seconds of a target forward over 1, 2, .. tokens.

    Source: this project's own. A round lasts as long as its widest verification and all its
        drafters, one after another: S = T(max size + 1) + sum over drafters of their longest draft.
    Update: none. The seconds a token of the mean row, S * mean(1 / tokens), are lowered. Not S /
        sum(tokens): rows that draft well would end early, and the others would be left to pay for a
        target that costs a few rows nearly as much as all. As in Dinkelbach (1967) each step takes
        the plans with the most sum(w tokens) - S / S', w = 1 / tokens'^2 over sum(1 / tokens')
        and S' those of the step before; each width is tried for all rows at once, and a drafter's
        seconds are split among the rows that played it in that step (at first all, or no row would
        begin). Beside where this leads, each width's best drafts are compared, with drafters that
        take time and without. Then each row in turn takes its best plan while the others stay.
    Cost: O(steps B K). Plain decoding for all is always among what is compared.

    A draft of 8 that one of two rows would like: where verifying it is dear both decode plainly;
    where it costs nothing both draft, since for the other row, too, the seconds are spent already.

    >>> tokens = np.array([[1.0, 4.0], [1.0, 1.1]])
    >>> dear, cheap = np.array([1.0] + [4.0] * 8), np.ones(9)
    >>> plans = np.array([0, 8]), np.array([0, 1]), np.array([0.0, 0.2])
    >>> [best_together(tokens, *plans, target_s).tolist() for target_s in (dear, cheap)]
    [[0, 0], [1, 1]]
    """
    order = np.argsort(sizes, kind="stable")
    forward_s = target_s[np.minimum(sizes[order], len(target_s) - 1)]
    rows, rounds = np.arange(len(tokens)), rounds_of(tokens)
    promised = np.where(tokens > 0, tokens, -np.inf)[:, order]
    tried = np.full(len(tokens), order[0])
    seconds = _seconds(tried, sizes, drafters, draft_s, target_s)
    ends = np.flatnonzero(np.append(np.diff(sizes[order]), 1))
    rounds_per_s = float(rounds[rows, tried].sum()) / seconds
    starts = _starts(rounds, order, ends, draft_s, rounds_per_s)
    widths = np.minimum(sizes[starts].max(axis=1), len(target_s) - 1)
    taken, missing = needed(starts, target_s[widths], rounds, drafters, draft_s)
    best, lowest = starts[(taken * missing).argmin()], float((taken * missing).min())
    payers, seen = np.full(int(drafters.max()) + 1, len(tokens)), set[bytes]()
    for _ in range(NUM_STEPS):
        present = rounds[rows, tried]
        worth = present**2 / present.sum()
        gains = worth[:, None] * promised - (draft_s / payers[drafters])[order] / seconds
        reached = np.maximum.accumulate(gains, axis=1).sum(axis=0) - forward_s / seconds
        widest = int(reached.argmax())
        tried = order[gains[:, : widest + 1].argmax(axis=1)]
        if tried.tobytes() in seen:
            break  # from here on steps are those that were taken before
        seen.add(tried.tobytes())
        payers = np.maximum(np.bincount(drafters[tried], minlength=len(payers)), 1)
        seconds = _seconds(tried, sizes, drafters, draft_s, target_s)
        found = seconds * float(rounds[rows, tried].sum())
        if found < lowest:
            best, lowest = tried, found

    def forward(plans: Ints, row: int) -> Floats:
        second, widest = np.sort(np.append(sizes[plans], 0))[-2:]
        others = np.where(sizes[plans[row:]] == widest, second, widest)
        widths = np.minimum(np.maximum(sizes, others[:, np.newaxis]), len(target_s) - 1)
        taken: Floats = target_s[widths]
        return taken

    return one_by_one(best, rounds, drafters, draft_s, forward)


def _starts(rounds: Floats, order: Ints, ends: Ints, draft_s: Floats, rounds_per_s: float) -> Ints:
    """[W, B] each row's best plan of those up to each width, as if the others were settled.

    ends: the last of each width in the order of widths. First each drafter's seconds are split
    among all rows; then plans that take any are left out.
    """
    shared, places = draft_s * (rounds_per_s / len(rounds)), np.arange(len(order))
    found: list[Ints] = []
    for prices in (shared, _DEAR * (draft_s > 0))[: 2 if draft_s.any() else 1]:
        least = np.minimum.accumulate((rounds + prices)[:, order], axis=1)
        is_better = np.diff(least, axis=1, prepend=np.inf) < 0
        found.append(np.maximum.accumulate(places * is_better, axis=1)[:, ends].T)
    starts: Ints = order[np.concatenate(found)]
    return starts


def _seconds(plans: Ints, sizes: Ints, drafters: Ints, draft_s: Floats, target_s: Floats) -> float:
    """Of a round in which rows play these plans."""
    seconds = target_s[min(int(sizes[plans].max()), len(target_s) - 1)]
    return float(seconds + longest_drafts(plans, drafters, draft_s).sum())
