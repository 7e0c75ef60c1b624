"""EAGLE heads as drafters: one layer over the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftwise.checks import optional, whole
from draftwise.drafters.drawing import DraftInput, DraftModelRunner, TreeLevel
from draftwise.drafters.protocol import Context, ModelDrafter
from draftwise.drafters.session import NeuralSession
from draftwise.nn.cache import HiddenStates, RaggedCache
from draftwise.nn.eagle import EagleHead, read
from draftwise.nn.eagle_files import load_head
from draftwise.nn.model import CausalModel
from draftwise.types import LONGEST_PLAN, TreeShape

CHUNK = 1024  # maximum slots of a row per forward of a head, which bounds its mask


def load_eagle(
    name: str,
    target: CausalModel,
    path: Path | str,
    depth: int | None = None,
    top_k: int | None = None,
    total_tokens: int | None = None,
) -> EagleDrafter:
    """An EAGLE-1, EAGLE-2 or EAGLE-3 head from a folder or hub id, in either layout.

    depth: the longest draft. top_k, total_tokens: the shape of its trees; with either, its plans
    draft trees unless a plan asks for another shape. Raises DraftwiseError for a head that cannot
    be read or was made for another target, ValueError for a limit outside 1 to 1,024.
    """
    tree = head_tree(depth, top_k, total_tokens)
    return EagleDrafter(name, load_head(str(path), target), target, depth, tree)


def head_tree(depth: int | None, top_k: int | None, total_tokens: int | None) -> TreeShape | None:
    """The tree shape of a spec, None for chains; a missing half is EAGLE-2's."""
    optional(whole, "depth", depth, 1, LONGEST_PLAN)
    if top_k is None and total_tokens is None:
        return None
    return TreeShape(10 if top_k is None else top_k, 60 if total_tokens is None else total_tokens)


class EagleDrafter(ModelDrafter):
    """An EAGLE head: one layer over the target's hidden states.

    Source: EAGLE (Li et al. 2024) for chains; EAGLE-2 (Li et al. 2024), section 4, for trees
    (``grow``); EAGLE-3 (Li et al. 2025). Differs: chains are sampled from q, where the authors
    draft greedily. Verified text is always processed with the target's hidden states, never with
    those of a draft (``docs/caches.md``). Memory: keys and values of one layer; D floats per
    token and tapped layer, shared by all heads. probs: as ``LMDrafter``.

    max_length, tree: limits and shape for its plans; None = those of the plan.
    """

    can_branch = True

    def __init__(
        self,
        name: str,
        head: EagleHead,
        target: CausalModel,
        max_length: int | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        self.name, self.head, self.max_length, self.tree = name, head, max_length, tree
        num_bytes = head.num_parameters * head.dtype.itemsize
        self.relative_cost = num_bytes / max(1, target.num_parameters * target.dtype.itemsize)
        states = len(head.taps) * target.hidden_size * target.dtype.itemsize
        self.token_bytes = head.token_bytes + states
        target.tap(head.taps)

    def start(self) -> NeuralSession:
        return NeuralSession(self.name, EagleRunner(self.head))


class EagleRunner(DraftModelRunner):
    """Runs an EAGLE head on the target's hidden states. A text of n tokens has n - 1 slots: slot s
    takes token s + 1 and the target's states after token s, and yields q of position s + 2. Slots
    of a draft are removed after verification, so all others were computed from the target's states.
    """

    lag, first = 1, 2

    def __init__(self, head: EagleHead) -> None:
        super().__init__(RaggedCache())
        self._head = head
        self._last: dict[int, Tensor] = {}
        self._level: dict[int, Tensor] = {}

    def close(self, row: int) -> None:
        super().close(row)
        self._last.pop(row, None)
        self._level.pop(row, None)

    def follow(self, context: Context) -> int:
        """As in the base class; -1 also for a text of one token, which has no state yet."""
        num = len(context.tokens)
        self.crop(context.row, num - 1)  # the last slot is recomputed
        return self._cache.capacity - num + 1 if num > 1 else -1

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, None]:
        lengths = self._cache.lengths
        while long := [
            DraftInput(r.context, lengths[r.context.row] + CHUNK + 1)
            for r in readings
            if r.most is None and r.end - 1 - lengths[r.context.row] > CHUNK
        ]:
            self._read_text(long)
        states = self._read_text(readings)
        self._last.update({r.context.row: s[-1:] for r, s in zip(readings, states, strict=True)})
        kept = [s[-r.num :] for r, s in zip(readings, states, strict=True)]
        return self._head.logits(torch.cat(kept)), None

    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, None]:
        last = [self._last[row] for row in rows]  # the head's output states
        states = read(self._head, self._cache, rows, list(tokens[:, None]), last)
        self._last.update(zip(rows, states, strict=True))
        return self._head.logits(torch.cat(states)), None

    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        states = []  # those of each token's parent
        for row, feed in zip(rows, feeds, strict=True):
            is_first = len(feed.tokens) == len(feed.tree.positions)
            states.append((self._last if is_first else self._level)[row][feed.above])
        tokens, trees = [feed.tokens for feed in feeds], [feed.tree for feed in feeds]
        found = read(self._head, self._cache, rows, tokens, states, trees)
        self._level.update(zip(rows, found, strict=True))
        return list(torch.split(self._head.logits(torch.cat(found)), [len(own) for own in found]))

    def rollback(self, context: Context, base: int, agreed: int) -> None:
        if base:  # the draft's slots, accepted or not
            self._cache.lengths[context.row] = min(self._cache.lengths[context.row], base - 1)

    def _read_text(self, readings: Sequence[DraftInput]) -> list[Tensor]:
        """States of the processed slots; those after skipped tokens are not kept in the cache."""
        rows = [r.context.row for r in readings]
        seen, tokens, partial = [], [], {}
        for r in readings:
            length = self._cache.lengths[r.context.row]
            start = length if r.most is None else max(length, r.end - 1 - r.most)
            if start > length:
                partial[r.context.row] = length
            seen.append(features_of(r.context).get(self._head.taps, start, r.end - 1))
            tokens.append(r.context.tokens[start + 1 : r.end])
        hidden = torch.split(self._head.fuse(torch.cat(seen)), [len(states) for states in seen])
        found = read(self._head, self._cache, rows, tokens, hidden)
        for row, length in partial.items():
            self._cache.lengths[row] = length
        return found


def features_of(context: Context) -> HiddenStates:
    if context.features is None:
        raise RuntimeError("the target's hidden states are not there: tap it before prefill")
    return context.features
