"""How texts went on after a match, merged by frequency: the likeliest chain, the likeliest tree."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.types import DraftStep, Floats, Ints

Rows = Sequence[Sequence[int]]
"""Continuations of one match, one row each; the row that wins a tie comes first."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Continuations merged to a prefix tree, the likeliest nodes first.

    tokens: [N]. parents: [N], each below its node's own index; -1 = the end of the text.
    probs: [N], the share of all rows that run through the node: cumulative along its path.
    """

    tokens: Ints
    parents: Ints
    probs: Floats


def most_frequent_path(rows: Rows, length: int) -> list[tuple[int, tuple[int, ...]]]:
    """The path that takes the most frequent continuation at each step, at most ``length`` tokens.

    Each token comes with the counts of what it was chosen among, its own first. A tie goes to the
    earliest row; rows that have ended do not vote, and the path ends where all have.

    >>> most_frequent_path([[7, 8], [5, 6], [5, 9, 1]], 3)
    [(5, (2, 1)), (6, (1, 1))]
    """
    path: list[tuple[int, tuple[int, ...]]] = []
    for depth in range(length):
        if len(rows) == 1:
            path += [(token, (1,)) for token in rows[0][depth:length]]
            break
        groups = _split(rows, depth)
        if not groups:
            break
        counts = {token: len(group) for token, group in groups.items()}
        token = max(counts, key=counts.__getitem__)
        rows, own = groups[token], counts.pop(token)
        path.append((token, (own, *counts.values())))
    return path


def tree(
    rows: Rows, num_tokens: int, *, top_k: int | None = None, length: int | None = None
) -> TokenTree:
    """The ``num_tokens`` likeliest nodes of the rows' prefix tree, best first.

    A node's probability is the share of all rows that run through it, as in SuffixDecoding; ties go
    to the shallower node, then to the earlier row. ``top_k``: children of a node, at most;
    ``length``: depth, at most.

    >>> tree([[5, 6], [5, 9], [7]], num_tokens=3).probs.round(2).tolist()
    [0.67, 0.33, 0.33]
    """
    order = itertools.count()
    heap: list[tuple[int, int, int, int, int, Rows]] = []

    def open_children(parent: int, depth: int, members: Rows) -> None:
        if length is not None and depth >= length:
            return
        groups = sorted(_split(members, depth).items(), key=lambda item: -len(item[1]))
        for token, group in groups[:top_k]:
            heapq.heappush(heap, (-len(group), next(order), parent, depth, token, group))

    nodes: list[tuple[int, int, float]] = []
    open_children(-1, 0, rows)
    while heap and len(nodes) < num_tokens:
        negative, _, parent, depth, token, group = heapq.heappop(heap)
        nodes.append((token, parent, -negative / len(rows)))
        open_children(len(nodes) - 1, depth + 1, group)
    tokens, parents, probs = zip(*nodes, strict=True) if nodes else ((), (), ())
    return TokenTree(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.array(probs, dtype=np.float64),
    )


@functools.lru_cache(maxsize=4096)
def describe(depth: int, length: int, counts: tuple[int, ...]) -> DraftStep:
    """What a guide sees after a token that was chosen with these counts, its own first.

    >>> describe(1, 5, (3, 1)).margin
    0.5
    """
    if len(counts) == 1:
        return DraftStep(depth, length, 1.0, 1.0, 0.0, 1.0)
    total = sum(counts)
    shares = [count / total for count in counts]
    entropy = -sum(share * math.log(share) for share in shares)
    return DraftStep(depth, length, shares[0], shares[0], entropy, shares[0] - max(shares[1:]))


def _split(rows: Rows, depth: int) -> dict[int, list[Sequence[int]]]:
    """Rows by their token at ``depth``, in the order of first appearance."""
    groups: dict[int, list[Sequence[int]]] = {}
    for row in rows:
        if depth < len(row):
            groups.setdefault(row[depth], []).append(row)
    return groups


def pruned(
    tokens: Ints,
    parents: Ints,
    ends: Container[int],
    num_allowed: Callable[[Sequence[int]], int] = len,
) -> tuple[Ints, Ints]:
    """A tree's tokens and parents without descendants of end tokens, tokens of probability 0, and
    their descendants. num_allowed: how many of a path's tokens come before one of probability 0.

    >>> pruned(np.array([5, 2, 7, 8]), np.array([-1, -1, 1, 0]), {2})[1].tolist()
    [-1, -1, 0]
    """
    place, paths = {-1: -1}, dict[int, list[int]]({-1: []})
    for node, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        if parent in place and (parent < 0 or int(tokens[parent]) not in ends):
            paths[node] = [*paths[parent], token]
            if num_allowed(paths[node]) == len(paths[node]):
                place[node] = len(place) - 1
    kept = list(place)[1:]
    above = np.array([place[parent] for parent in parents[kept].tolist()], dtype=np.int64)
    return tokens[kept], above
