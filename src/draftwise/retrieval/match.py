"""What a retrieval source found, and how continuations merge: a path, or a tree by frequency."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from draftwise.types import Floats, Ints

Rows: TypeAlias = Sequence[Sequence[int]]
"""Continuations of one match; ties go to the first row."""


@dataclass(frozen=True, slots=True)
class Match:
    """The longest matching end of a text: ``length`` tokens, of which a source knows what followed.

    Each source has a subclass, which reads continuations only as deep as they are asked for.
    """

    length: int

    def rows(self, depth: int) -> Rows:
        """The continuations, at most ``depth`` tokens of each."""
        return []

    def proposal(self) -> int:
        """The most frequent next token; ties go to the first; -1 = none."""
        path = most_frequent_path(self.rows(1), 1)
        return path[0][0] if path else -1


NO_MATCH = Match(0)


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Continuations merged into a prefix tree, the likeliest nodes first.

    tokens: [N]. parents: [N], each below its node's index; -1 = the end of the text. probs: [N],
    the share of all rows that run through the node: cumulative along its path.
    """

    tokens: Ints
    parents: Ints
    probs: Floats


def most_frequent_path(rows: Rows, length: int) -> list[tuple[int, tuple[int, ...]]]:
    """The path that takes the most frequent continuation at each step, at most ``length`` tokens.

    Each token comes with the counts of all candidates, the token's first. Ties go to the earliest
    row; rows that have ended do not vote, and the path ends where all have.

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


def continuation_tree(
    rows: Rows, num_tokens: int, *, top_k: int | None = None, length: int | None = None
) -> TokenTree:
    """The ``num_tokens`` likeliest nodes of the rows' prefix tree, best first.

    A node's probability is the share of all rows that run through it, as in SuffixDecoding; ties go
    to the shallower node, then to the earlier row. top_k: maximum number of children of a node;
    length: maximum depth.

    >>> continuation_tree([[5, 6], [5, 9], [7]], num_tokens=3).probs.round(2).tolist()
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
    edges = np.array([tokens, parents], dtype=np.int64)
    return TokenTree(edges[0], edges[1], np.array(probs, dtype=np.float64))


def _split(rows: Rows, depth: int) -> dict[int, list[Sequence[int]]]:
    """Rows by their token at ``depth``, in the order of first appearance."""
    groups: dict[int, list[Sequence[int]]] = {}
    for row in rows:
        if depth < len(row):
            groups.setdefault(row[depth], []).append(row)
    return groups
