"""Medusa heads as drafter: a whole draft from the target's last hidden state, in one forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwise.checks import optional, whole
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

    Source: Medusa (Cai et al. 2024), section 2.1. Differs: chains, not trees of the heads' best
    guesses; sampled, where the authors are greedy; verified exactly, where they accept what is
    typical; q is what was sampled from, after temperature, top-k and top-p. The last token of a
    text is the target's own choice, which no state knows yet: head 0 follows *it*, so heads are
    conditioned on one token less than other drafters, and none on what was drafted before. Each
    token is judged with its own q all the same, which is all that losslessness asks for.
    Index: none. Memory: D floats a token, which all heads share. Time: one small layer and one
    ``lm_head`` a token, in one forward for all; nothing to catch up on, but head 0 looks once at
    what it missed, to be scored there. probs: as ``LMDrafter``.

    max_length: one token a head, or less; plans draft no longer.
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
        """Nothing scored yet."""
        return NeuralSession(self.name, MedusaRunner(self.heads, self._tap, self.max_length))


class MedusaRunner:
    """Heads on the target's last states; there is no cache, and nothing drafted is read.

    The state after token s gives, by head i, q of position s + 2 + i.
    """

    remembers = False
    probe_tokens = None
    shows_hidden = resumes = False

    def __init__(self, heads: MedusaHeads, tap: int, max_length: int) -> None:
        self._heads, self._tap, self._max_length = heads, tap, max_length
        self._ahead: dict[int, list[Tensor]] = {}

    def open(self, row: int, expected: int) -> None:
        """Nothing to prepare."""

    def close(self, row: int) -> None:
        """Forget the row."""
        self._ahead.pop(row, None)

    def crop(self, row: int, length: int) -> None:
        """There is nothing to keep but the target's states."""

    def copy(self, source: int, row: int, length: int) -> None:
        """There is nothing to take over but the target's states."""

    def follow(self, context: Context) -> int:
        """A text of one token has no hidden state yet: the target reads it in this very round."""
        return self._max_length if len(context.tokens) > 1 else -1

    def base(self, context: Context) -> int:
        """There is no cache."""
        return 0

    def first(self, context: Context) -> int:
        """What a text begins with has no state before it."""
        return 2

    def num_unread(self, context: Context, end: int) -> int:
        """Any state can be looked at again."""
        return max(0, end - 1)

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, None]:
        """Head 0 on the text; of its last state all that a draft will need."""
        states = [self._states(r.context, r.end - 1 - r.num, r.num) for r in readings]
        ahead = max(reading.ahead for reading in readings)
        if ahead > 1:
            every = self._heads.logits(torch.cat([own[-1:] for own in states]), ahead)
            for index, reading in enumerate(readings):
                self._ahead[reading.context.row] = list(every[1:, index])
        return self._heads.logits(torch.cat(states), 1)[0], None

    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, None]:
        """The next head, whatever was drawn."""
        return torch.stack([self._ahead[row].pop(0) for row in rows]), None

    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        """Raises ValueError: no tree can be made of heads that do not see each other's tokens."""
        raise ValueError("Medusa heads draft chains: ask for a plan without a tree")

    def settle(self, context: Context, base: int, agreed: int) -> None:
        """Nothing was stored."""

    def _states(self, context: Context, start: int, num: int) -> Tensor:
        """[num, D] the target's last states after the tokens ``start``, ``start + 1``, ..."""
        if context.features is None:
            raise RuntimeError("the target's hidden states are not there: tap it before prefill")
        return context.features.get([self._tap], start, start + num)
