"""What a model drafter runs: its network on a KV cache, and the growth of trees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.drafters.protocol import Context
from draftwise.nn.attention import Branches
from draftwise.nn.cache import RaggedCache
from draftwise.nn.sampling import SampledSpan
from draftwise.types import TreeShape

PROBE_TOKENS = 32  # number of last tokens that a probe processes


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """The next level of a tree to feed. tokens: [n]. tree: their positions and mask. above: [n]
    index of each token's parent in the previous level (0 in the first level).
    """

    tokens: Tensor
    tree: Branches
    above: Tensor


Growing = Generator[TreeLevel, Tensor, tuple[Tensor, Tensor]]
"""Yields a level, is sent its logits [n, V], returns tokens [N] and parents [N]."""


def grow(shape: TreeShape, depth: int, base: int, logits: Tensor) -> Growing:
    """Grow a tree after ``base`` cached tokens; logits: [V] after them.

    Source: EAGLE-2 (Li et al. 2024), section 4: the ``top_k`` tokens of a level with the likeliest
    paths get ``top_k`` children each; the likeliest ``total_tokens`` of all are the draft. Differs:
    also for ordinary LMs, at temperature 1 and before any warping. No token is drawn, so the tree
    is a function of the text. Cost: one forward and one top-k per level, on the device.
    """
    num = min(shape.top_k, logits.shape[-1])
    tokens, parents, scores = [], [], []
    level, nodes = logits[None], torch.full((1,), -1, device=logits.device)
    above = torch.zeros(1, device=logits.device)
    seen = torch.zeros((1, 0), dtype=torch.bool, device=logits.device)
    for step in range(depth):
        found = torch.log_softmax(level.float(), dim=-1).topk(num, dim=-1)
        tokens.append(found.indices.flatten())
        parents.append(nodes.repeat_interleave(num))
        scores.append((above[:, None] + found.values).flatten())
        if step + 1 == depth:
            break
        best = _best(scores[-1], num)
        slots = best // num  # index in the previous level
        nodes = best + sum(map(len, tokens[:-1]))
        above = scores[-1][best]
        own = torch.eye(len(best), dtype=torch.bool, device=seen.device)
        seen = torch.cat((seen[slots], own), dim=1)
        positions = np.repeat(base + np.arange(step + 1), num)
        level = yield TreeLevel(tokens[-1][best], Branches(base, positions, seen), slots)
    every = torch.cat(scores)
    chosen = _best(every, shape.total_tokens)
    place = torch.full((len(every) + 1,), -1, device=logits.device)  # [-1]: the root
    place[chosen] = torch.arange(len(chosen), device=logits.device)
    return torch.cat(tokens)[chosen], place[torch.cat(parents)[chosen]]


def _best(scores: Tensor, num: int) -> Tensor:
    """Indices of the ``num`` largest scores, in increasing order; ties go to the first."""
    return scores.sort(descending=True, stable=True).indices[:num].sort().values


@dataclass(frozen=True, slots=True)
class DraftInput:
    """Input of one row: text and draft, up to ``end`` tokens of both. num: last positions whose
    logits are returned, at least 1. most: feed at most this many uncached tokens, the last ones.
    """

    context: Context
    end: int
    num: int = 1
    drafted: Sequence[int] = ()
    most: int | None = None

    @property
    def span(self) -> SampledSpan:
        """The sampling span of its logits."""
        first = self.end + 1 - self.num
        start = min(first, len(self.context.tokens))
        return self.context.span(self.num, start, self.drafted, skip=first - start)


class DraftModelRunner(ABC):
    """Runs one kind of network on its KV cache and returns logits; samples nothing.

    Position t of a text is that of its t-th token, from 0; q of position t is conditioned on the
    tokens before it. resumes: whether it can draft after tokens that it did not draw.
    """

    resumes = False

    def __init__(self, cache: RaggedCache) -> None:
        self._cache = cache

    @property
    def probe_tokens(self) -> int:
        """Maximum number of tokens that a probe processes."""
        return min(PROBE_TOKENS, self._cache.capacity)

    @property
    def shows_hidden(self) -> bool:
        """Whether it returns hidden states with the logits."""
        return False

    def open(self, row: int) -> None:
        self._cache.open(row)

    def close(self, row: int) -> None:
        self._cache.close(row)

    @abstractmethod
    def crop(self, row: int, length: int) -> None:
        """Reuse the row for another text, keeping its first ``length`` tokens."""

    @abstractmethod
    def copy(self, source: int, row: int, length: int) -> None:
        """Fill an open row with the first ``length`` tokens of another one."""

    @abstractmethod
    def follow(self, context: Context) -> int:
        """Adapt the row to a longer text; return the slots left for a draft, -1 = cannot draft."""

    def base(self, context: Context) -> int:
        """Number of cached tokens of the row."""
        return self._cache.lengths[context.row]

    @abstractmethod
    def first(self, context: Context) -> int:
        """The first position whose q equals that of a draft."""

    @abstractmethod
    def num_unread(self, context: Context, end: int) -> int:
        """Number of positions up to ``end`` whose q is not computed yet."""

    @abstractmethod
    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, Tensor | None]:
        """Feed uncached tokens: [sum of num, V] logits, [R, D] last states if ``shows_hidden``."""

    @abstractmethod
    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Feed each row one token [R]: [R, V] logits, [R, D] states."""

    @abstractmethod
    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        """Feed each row a level of its tree: [n, V] logits each."""

    @abstractmethod
    def rollback(self, context: Context, base: int, agreed: int) -> None:
        """Roll back to ``agreed`` tokens; base: where the draft began (0 = none)."""
