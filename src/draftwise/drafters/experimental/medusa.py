"""Medusa heads as drafter: a whole draft from the target's last hidden state, in one forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwise.checks import optional, whole
from draftwise.drafters.eagle import HiddenStateRunner, features_of
from draftwise.drafters.model_session import DraftInput, NeuralSession, TreeLevel
from draftwise.drafters.protocol import Context
from draftwise.nn.heads.medusa import MedusaHeads, load_medusa_heads
from draftwise.nn.model import CausalModel
from draftwise.types import LONGEST_PLAN, TreeShape


def load_medusa(
    name: str, target: CausalModel, path: str, depth: int | None = None
) -> MedusaDrafter:
    """Medusa heads from a folder or hub id, in the authors' layout.

    depth: the longest draft, at most one token a head. Raises DraftwiseError for heads that cannot
    be read or were made for another target, ValueError for a depth below 1.
    """
    optional(whole, "depth", depth, 1, LONGEST_PLAN)
    return MedusaDrafter(name, load_medusa_heads(path, target), target, depth)


class MedusaDrafter:
    """Medusa heads: each guesses one of the coming tokens, all from the target's last state.

    Source: Medusa (Cai et al. 2024), section 2.1. Differs: sampled chains, verified exactly, where
    the authors draft greedy trees and accept what is typical. The last token of a text has no
    hidden state yet, so the heads are conditioned on one token less than other drafters, and none
    on the tokens drafted before it; each token is verified with its own q. Memory: D floats per
    token, shared by all heads. Time: one forward, a small layer and an ``lm_head`` per token.
    probs: as ``LMDrafter``.
    """

    can_branch = can_mix = retrieves = False
    tree: TreeShape | None = None

    def __init__(
        self, name: str, heads: MedusaHeads, target: CausalModel, max_length: int | None = None
    ) -> None:
        self.name, self.heads = name, heads
        self.max_length = min(len(heads), max_length or len(heads))
        self.relative_cost = heads.num_parameters / len(heads) / max(1, target.num_parameters)
        self.token_bytes = target.hidden_size * target.dtype.itemsize
        self._tap = target.num_layers
        target.tap([self._tap])

    def start(self) -> NeuralSession:
        return NeuralSession(self.name, MedusaRunner(self.heads, self._tap, self.max_length))


class BlockRunner(HiddenStateRunner):
    """A runner whose ``read`` stores the logits of all drafted tokens in ``_ahead``."""

    def __init__(self, max_length: int) -> None:
        super().__init__()
        self._max_length = max_length
        self._ahead: dict[int, list[Tensor]] = {}

    def close(self, row: int) -> None:
        super().close(row)
        self._ahead.pop(row, None)

    def follow(self, context: Context) -> int:
        return min(self._max_length, super().follow(context))

    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, None]:
        """[R, V] logits of each row's next token, whatever was drawn before it."""
        return torch.stack([self._ahead[row].pop(0) for row in rows]), None

    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        raise ValueError("these heads draft chains, which see no other branch: ask for no tree")

    def settle(self, context: Context, base: int, agreed: int) -> None:
        """Keep everything: no token of a draft is in the cache."""


class MedusaRunner(BlockRunner):
    """Heads on the target's last states; the cache stays empty.

    The state after token s gives, by head i, q of position s + 2 + i.
    """

    remembers = False

    def __init__(self, heads: MedusaHeads, tap: int, max_length: int) -> None:
        super().__init__(max_length)
        self._heads, self._tap = heads, tap

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, None]:
        """Head 0 on the text, and on its last state all heads that the draft needs."""
        states = [
            features_of(r.context).get([self._tap], r.end - 1 - r.num, r.end - 1) for r in readings
        ]
        ahead = max(reading.ahead for reading in readings)
        if ahead > 1:
            every = self._heads.logits(torch.cat([own[-1:] for own in states]), ahead)
            for index, reading in enumerate(readings):
                self._ahead[reading.context.row] = list(every[1:, index])
        return self._heads.logits(torch.cat(states), 1)[0], None
