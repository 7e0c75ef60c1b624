"""Feeds that do not go as they are: rows one by one, and rows that read some tokens again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
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
    trees: Sequence[Branches | None] = (),
) -> Logits:
    """Rows whose state is not known where they were cut back to read on from where it is."""
    again = [cache.states.missing(row, cache.lengths[row]) for row in rows]
    return read_behind(extend, cache, rows, tokens, keep, trees, again)


def read_behind(
    extend: Extend,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Sequence[int]],
    keep: int,
    trees: Sequence[Branches | None],
    again: Sequence[Sequence[int]],
) -> Logits:
    """A feed behind the last tokens of each row's cache, which are read once more with it."""
    if not any(again):
        return extend(cache, rows, tokens, keep, trees)
    for row, missed in zip(rows, again, strict=True):
        cache.lengths[row] -= len(missed)
    fed = [[*missed, *new] for missed, new in zip(again, tokens, strict=True)]
    found = extend(cache, rows, fed, keep, trees)
    hidden = {
        tap: [state[len(missed) :] for state, missed in zip(states, again, strict=True)]
        for tap, states in found.hidden.items()
    }
    return replace(found, hidden=hidden)


def read_turned(
    extend: Extend,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Sequence[int]],
    keep: int,
    trees: Sequence[Branches | None],
    switch: int,
) -> Logits:
    """Read on with the table of each row's last position, and again what the other one turned.

    switch: tokens that the first table is for. Rows of different tables go one by one.
    """
    turns = cache.turns
    assert turns is not None
    trees = trees or [None] * len(rows)
    needs = [
        _end(cache.lengths[row], fed, tree) > switch
        for row, fed, tree in zip(rows, tokens, trees, strict=True)
    ]
    if len(set(needs)) > 1:
        alone = partial(read_turned, extend, switch=switch)
        return read_alone(alone, cache, rows, tokens, keep, trees)
    again, whole = [], []
    for row, fed, tree in zip(rows, tokens, trees, strict=True):
        start = cache.lengths[row]
        missed = turns.tokens[row][:start] if turns.is_long[row] != needs[0] else []
        again.append(missed)
        whole.append(_from_the_first(tree, start) if tree is not None and missed else tree)
        turns.tokens[row] = [*turns.tokens[row][:start], *fed]
        turns.is_long[row] = needs[0]
    return read_behind(extend, cache, rows, tokens, keep, whole if any(whole) else (), again)


def _end(start: int, fed: Sequence[int], tree: Branches | None) -> int:
    """The last position of a feed, and one."""
    return start + len(fed) if tree is None else int(tree.positions.max()) + 1


def _from_the_first(tree: Branches, start: int) -> Branches:
    """A tree fed from slot ``start`` on, together with all that stands before it.

    Where it grew level by level (only drafters' do), levels before this one are read as a chain.
    """
    fed = tree.seen.numpy(force=True) if isinstance(tree.seen, torch.Tensor) else tree.seen
    end = tree.base + len(tree.positions)
    seen = np.tri(start + len(fed), end, dtype=np.bool_)
    seen[start:, tree.base :] = fed
    return Branches(0, np.concatenate((np.arange(tree.base), tree.positions)), seen)
