"""Drafters that were tested with random heads only: Medusa, DFlash and MTP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from draftwise.checks import optional, whole
from draftwise.drafters.eagle import EagleDrafter, HiddenStateRunner, features_of, head_tree
from draftwise.drafters.model_session import DraftInput, NeuralSession, TreeLevel
from draftwise.drafters.protocol import Context
from draftwise.nn.cache import RowSpan
from draftwise.nn.heads.mtp import load_mtp_head
from draftwise.nn.heads.parallel import DFlashHead, MedusaHeads, load_dflash_head, load_medusa_heads
from draftwise.nn.model import CausalModel
from draftwise.types import LONGEST_PLAN, TreeShape


def load_mtp(
    name: str,
    target: CausalModel,
    path: str = "",
    depth: int | None = None,
    top_k: int | None = None,
    total_tokens: int | None = None,
) -> EagleDrafter:
    """The MTP head of the target's checkpoint, or of another folder or hub id.

    depth, top_k, total_tokens, errors: as for an EAGLE head; such a head is trained for one token,
    or for as many as its authors state.
    """
    tree = head_tree(depth, top_k, total_tokens)
    return EagleDrafter(name, load_mtp_head(path or target.name, target), target, depth, tree)


def load_medusa(
    name: str, target: CausalModel, path: str, depth: int | None = None
) -> MedusaDrafter:
    """Medusa heads from a folder or hub id, in the authors' layout.

    depth: the longest draft, at most one token a head. Errors: as for an EAGLE head.
    """
    optional(whole, "depth", depth, 1, LONGEST_PLAN)
    return MedusaDrafter(name, load_medusa_heads(path, target), target, depth)


class MedusaDrafter:
    """Medusa heads: each predicts one of the next tokens, all from the target's last state.

    Source: Medusa (Cai et al. 2024), section 2.1. Differs: sampled chains, verified exactly, where
    the authors draft greedy trees and use typical acceptance. The last token of a text has no
    hidden state yet, so the heads are conditioned on one token less than other drafters, and not on
    the tokens drafted before; each token is verified with its head's q. Memory: D floats per token,
    shared by all heads. Time: one forward, a small layer and an ``lm_head`` per token. probs: as
    ``LMDrafter``.
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

    probe_tokens = None  # a class attribute in place of the property

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
        return torch.stack([self._ahead[row].pop(0) for row in rows]), None

    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        raise ValueError("these heads draft chains, which see no other branch: ask for no tree")

    def rollback(self, context: Context, base: int, agreed: int) -> None:
        """Keep everything: no token of a draft is in the cache."""


class MedusaRunner(BlockRunner):
    """Runs heads on the target's last states; the cache stays empty. From the state after token s,
    head i predicts q of position s + 2 + i.
    """

    remembers = False

    def __init__(self, heads: MedusaHeads, tap: int, max_length: int) -> None:
        super().__init__(max_length)
        self._heads, self._tap = heads, tap

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, None]:
        """Run head 0 on the text, and all heads that the draft needs on its last state."""
        ends = [(features_of(r.context), r.end - 1, r.num) for r in readings]
        states = [features.get([self._tap], end - num, end) for features, end, num in ends]
        ahead = max(r.ahead for r in readings)
        if ahead > 1:
            every = self._heads.logits(torch.cat([own[-1:] for own in states]), ahead)
            for index, r in enumerate(readings):
                self._ahead[r.context.row] = list(every[1:, index])
        return self._heads.logits(torch.cat(states), 1)[0], None


def load_dflash(
    name: str, target: CausalModel, path: str, depth: int | None = None
) -> DFlashDrafter:
    """A DFlash head from a folder or hub id, in the layout of ``speculators``.

    depth: the longest draft, at most a block. Errors: as for an EAGLE head.
    """
    optional(whole, "depth", depth, 1, LONGEST_PLAN)
    return DFlashDrafter(name, load_dflash_head(path, target), target, depth)


class DFlashDrafter:
    """A DFlash head: a block of masks after the last token, filled in one forward.

    Source: DFlash (Chen et al. 2026, arXiv 2602.06036). Differs: tokens are sampled, where the
    authors are greedy, and each is verified with its q, which is not conditioned on the tokens
    drafted before it. Text that another drafter drafted is scored with one block per token. Memory:
    keys and values of its layers; D floats per token and tapped layer, shared by all heads. Time:
    one forward of a block, whatever the length. probs: as ``LMDrafter``.
    """

    can_branch = can_mix = retrieves = False
    tree: TreeShape | None = None

    def __init__(
        self, name: str, head: DFlashHead, target: CausalModel, max_length: int | None = None
    ) -> None:
        longest = head.block.longest
        self.name, self.head, self.max_length = name, head, min(longest, max_length or longest)
        config, itemsize = head.config, head.fc.weight.element_size()
        self.relative_cost = head.num_parameters / longest / max(1, target.num_parameters)
        self.token_bytes = itemsize * (
            2 * len(head.layers) * config.num_key_value_heads * config.head_dim
            + len(config.taps) * target.hidden_size
        )
        target.tap(config.taps)

    def start(self) -> NeuralSession:
        return NeuralSession(self.name, DFlashRunner(self.head, self.max_length))


class DFlashRunner(BlockRunner):
    """Runs one head on its cache: keys and values of the target's states, never of a draft.

    A block after token s attends to the states after the tokens before s, and its n-th slot from
    ``block.first`` on yields q of position s + 1 + n.
    """

    def __init__(self, head: DFlashHead, max_length: int) -> None:
        super().__init__(max_length)
        self._head = head

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, None]:
        """Run blocks after the last ``num`` tokens of each text; store the last one for a draft."""
        states, first = self._fill(readings, self._read_texts(readings)), self._head.block.first
        for own, r in zip(states, readings, strict=True):
            if r.ahead > 1:
                later = self._head.logits(own[-1, first + 1 : first + r.ahead])
                self._ahead[r.context.row] = list(later)
        return self._head.logits(torch.cat([own[:, first] for own in states])), None

    def _read_texts(self, readings: Sequence[DraftInput]) -> list[tuple[Tensor, Tensor]]:
        """Cache keys and values of the target's states of each text, up to the token before the
        last; return those of each layer [R, G, used, d].
        """
        starts = [self._cache.lengths[r.context.row] for r in readings]
        pairs = list(zip(readings, starts, strict=True))
        spans = [RowSpan(r.context.row, start, r.end - 1 - start) for r, start in pairs]
        self._cache.place(spans)
        taps = self._head.config.taps
        seen = [features_of(r.context).get(taps, start, r.end - 1) for r, start in pairs]
        states = pad_sequence(seen, batch_first=True)
        steps = torch.arange(states.shape[1], device=states.device)
        positions = torch.tensor(starts, device=states.device)[:, None] + steps
        held: list[tuple[Tensor, Tensor]] = []

        def keep(number: int, k: Tensor, v: Tensor) -> None:
            held.append(self._cache.update(k, v, number))

        self._head.read(states, positions, keep, max(starts) + states.shape[1])
        for span in spans:
            self._cache.lengths[span.row] = span.end
        return held

    def _fill(
        self, readings: Sequence[DraftInput], held: Sequence[tuple[Tensor, Tensor]]
    ) -> list[Tensor]:
        """States [num, S, h] of the blocks after the last ``num`` tokens of each text."""
        device = held[0][0].device
        ends = [(row, at) for row, r in enumerate(readings) for at in range(r.end - r.num, r.end)]
        tokens = [token for r in readings for token in r.context.tokens[r.end - r.num : r.end]]
        rows, places = torch.tensor(ends, device=device).unbind(1)
        used = torch.arange(held[0][0].shape[2], device=device)
        before = used < places[:, None]
        own = before.new_ones(len(places), self._head.block.size)
        mask = torch.cat((before, own), dim=1)[:, None, None]

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            old_k, old_v = held[number]
            keys, values = torch.cat((old_k[rows], k), dim=2), torch.cat((old_v[rows], v), dim=2)
            return scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, enable_gqa=q.shape[1] != keys.shape[1]
            )

        longest = max(at for _, at in ends) + self._head.block.size
        states = self._head(torch.tensor(tokens, device=device), places, attend, longest)
        return list(torch.split(states, [r.num for r in readings]))
