"""A tree of a network's likeliest continuations, grown level by level on the device."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.nn.trees import Branches
from draftwise.types import TreeShape


@dataclass(frozen=True, slots=True)
class Feed:
    """A level of a tree that is read next.

    tokens: [n]. tree: how they stand behind the text. above: [n] which token of the level before
    each continues (of the first level, the text's end: 0).
    """

    tokens: Tensor
    tree: Branches
    above: Tensor


Growing = Generator[Feed, Tensor, tuple[Tensor, Tensor]]
"""Asks for a level to be read, is sent its logits, and gives tokens [N] and parents [N]."""


def grow(shape: TreeShape, depth: int, base: int, logits: Tensor) -> Growing:
    """A tree behind ``base`` tokens that the network has read; logits: [V] after them.

    Source: EAGLE-2 (Li et al. 2024), section 4: the ``top_k`` likeliest tokens of a level, by the
        product of probabilities along their path, get ``top_k`` children each; when the depth is
        reached, the likeliest ``total_tokens`` of all are the draft.
    Differs: for an LM by the log-probabilities of an ordinary LM, at temperature 1 and before any
        warp: the tree is a function of the text, so no token in it was drawn, and p decides alone.
    Cost: one forward and one top-k a level; the host sees nothing of it.
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
        slots = best // num  # which token of the level before
        nodes = best + sum(map(len, tokens[:-1]))
        above = scores[-1][best]
        own = torch.eye(len(best), dtype=torch.bool, device=seen.device)
        seen = torch.cat((seen[slots], own), dim=1)
        positions = np.repeat(base + np.arange(step + 1), num)
        level = yield Feed(tokens[-1][best], Branches(base, positions, seen), slots)
    every = torch.cat(scores)
    chosen = _best(every, shape.total_tokens)
    place = torch.full((len(every) + 1,), -1, device=logits.device)  # the last one: of the text
    place[chosen] = torch.arange(len(chosen), device=logits.device)
    return torch.cat(tokens)[chosen], place[torch.cat(parents)[chosen]]


def _best(scores: Tensor, num: int) -> Tensor:
    """The ``num`` likeliest of these, in the order they were made; of equals the first."""
    return scores.sort(descending=True, stable=True).indices[:num].sort().values
