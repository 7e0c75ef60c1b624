"""A tree of a causal LM's likeliest continuations, grown level by level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.nn.trees import Branches, branches
from draftwise.types import Draft, TreeShape


@dataclass(frozen=True, slots=True)
class Feed:
    """What the drafter reads next: tokens [n], and how they stand in the tree so far.

    parents: for each token, which of all that were fed before it continues; -1 = the text.
    """

    tokens: list[int]
    tree: Branches
    parents: list[int]


class Growth:
    """One row's tree while it grows.

    Source: EAGLE-2 (Li et al. 2024), section 4: the ``top_k`` likeliest tokens of a level, by the
        product of probabilities along their path, get ``top_k`` children each; when the depth is
        reached, the likeliest ``total_tokens`` of all are the draft.
    Differs: by the log-probabilities of an ordinary LM, at temperature 1 and before any warp: the
        tree is a function of the text, so no token in it was drawn, and p decides alone.
    State: per node its token, parent and log-probability. Cost: one forward and one top-k a level.
    """

    def __init__(self, shape: TreeShape, depth: int) -> None:
        self._shape, self._left = shape, depth
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._frontier = [-1]
        self._fed: list[int] = []

    @property
    def goes_on(self) -> bool:
        """Whether another level is wanted."""
        return self._left > 0

    def next_feed(self, base: int) -> Feed:
        """The level's likeliest tokens, to be read behind ``base`` tokens of text."""
        self._fed += self._frontier
        place = {node: index for index, node in enumerate(self._fed)}
        parents = [place.get(self._parents[node], -1) for node in self._fed]
        tokens = [self._tokens[node] for node in self._frontier]
        tree = branches(parents, base, num_fed=len(tokens))
        return Feed(tokens, tree, parents[-len(tokens) :])

    def see(self, logits: Tensor) -> None:
        """[n, V] after each token of the last feed (at first [1, V], after the text)."""
        num = min(self._shape.top_k, logits.shape[-1])
        found = torch.log_softmax(logits.float(), dim=-1).topk(num, dim=-1)
        first = len(self._tokens)
        for node, tokens, scores in zip(
            self._frontier, found.indices.tolist(), found.values.tolist(), strict=True
        ):
            self._tokens += tokens
            self._parents += [node] * num
            above = self._scores[node] if node >= 0 else 0.0
            self._scores += [above + score for score in scores]
        level = np.arange(first, len(self._tokens))
        self._frontier = self._best(level, num)
        self._left -= 1

    def draft(self, source: str) -> Draft:
        """The likeliest nodes of all: a parent is never less likely than its children."""
        nodes = self._best(np.arange(len(self._tokens)), self._shape.total_tokens)
        place = {node: index for index, node in enumerate(nodes)}
        return Draft(
            np.array([self._tokens[node] for node in nodes], dtype=np.int64),
            None,
            [source] * len(nodes),
            np.array([place.get(self._parents[node], -1) for node in nodes], dtype=np.int64),
        )

    def _best(self, nodes: np.ndarray, num: int) -> list[int]:
        """The ``num`` likeliest of these nodes, in the order they were made."""
        order = np.argsort(-np.array(self._scores)[nodes], kind="stable")[:num]
        return sorted(nodes[order].tolist())
