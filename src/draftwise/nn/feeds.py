"""Feeds that do not go as they are: rows one at a time, and rows that read some tokens again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from draftwise.nn.cache import RaggedCache
from draftwise.nn.logits import Logits
from draftwise.nn.masks import Fed
from draftwise.nn.trees import Branches

Extend = Callable[
    [RaggedCache, Sequence[int], Sequence[Fed], int, Sequence[Branches | None]], Logits
]
"""``CausalModel.extend``: cache, rows, tokens, keep, trees."""


def read_alone(
    extend: Extend,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Fed],
    keep: int,
    trees: Sequence[Branches | None],
) -> Logits:
    """Each row in a forward of its own, for models that take one position for all rows."""
    each = zip(rows, tokens, trees or [None] * len(rows), strict=True)
    parts = [extend(cache, [row], [fed], keep, [tree]) for row, fed, tree in each]
    firsts = [0, *accumulate(len(part.flat) for part in parts)]
    ends = [first + part.ends[0] for first, part in zip(firsts, parts, strict=False)]
    hidden = {tap: [part.hidden[tap][0] for part in parts] for tap in parts[0].hidden}
    num_fed = sum(part.num_fed for part in parts)
    return Logits(torch.cat([part.flat for part in parts]), ends, num_fed, hidden)


def read_again(
    extend: Extend,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Sequence[int]],
    keep: int,
) -> Logits:
    """Rows whose state is not known where they were cut back to read on from where it is."""
    again = [cache.states.missing(row, cache.lengths[row]) for row in rows]
    if not any(again):
        return extend(cache, rows, tokens, keep, ())
    for row, missed in zip(rows, again, strict=True):
        cache.lengths[row] -= len(missed)
    fed = [[*missed, *new] for missed, new in zip(again, tokens, strict=True)]
    found = extend(cache, rows, fed, keep, ())
    hidden = {
        tap: [state[len(missed) :] for state, missed in zip(states, again, strict=True)]
        for tap, states in found.hidden.items()
    }
    return replace(found, hidden=hidden)
