"""A DFlash head as drafter: a whole draft in one forward, every token of it with its own q."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from draftwise.checks import optional, whole
from draftwise.drafters.eagle import features_of
from draftwise.drafters.experimental.medusa import BlockRunner
from draftwise.drafters.model_session import DraftInput, NeuralSession
from draftwise.nn.cache import Span
from draftwise.nn.heads.dflash import DFlashHead, load_dflash_head
from draftwise.nn.model import CausalModel
from draftwise.types import LONGEST_PLAN, TreeShape


def load_dflash(
    name: str, target: CausalModel, path: str, depth: int | None = None
) -> DFlashDrafter:
    """A DFlash head from a folder or hub id, in the layout of ``speculators``.

    depth: the longest draft, at most a block. Raises DraftwiseError for a head that cannot be read
    or was made for another target, ValueError for a depth below 1.
    """
    optional(whole, "depth", depth, 1, LONGEST_PLAN)
    return DFlashDrafter(name, load_dflash_head(path, target), target, depth)


class DFlashDrafter:
    """A DFlash head: a block of masks after the last token, filled in one forward.

    Source: DFlash (Chen et al. 2026, arXiv 2602.06036). Differs: tokens are sampled, where the
    authors are greedy, and each is verified with its own q, which is not conditioned on the tokens
    drafted before it. Text that another drafter continued is scored by one block per token. Memory:
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
    """One head on its cache: keys and values of the target's states, never of a draft.

    A block after token s looks at the states after the tokens before s, and its n-th slot from
    ``block.first`` on gives q of position s + 1 + n.
    """

    def __init__(self, head: DFlashHead, max_length: int) -> None:
        super().__init__(max_length)
        self._head = head

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, None]:
        """Blocks after the last ``num`` tokens of each text; of the last, all for a draft."""
        states, first = self._fill(readings, self._read_texts(readings)), self._head.block.first
        for states_of, reading in zip(states, readings, strict=True):
            if reading.ahead > 1:
                later = self._head.logits(states_of[-1, first + 1 : first + reading.ahead])
                self._ahead[reading.context.row] = list(later)
        return self._head.logits(torch.cat([own[:, first] for own in states])), None

    def _read_texts(self, readings: Sequence[DraftInput]) -> list[tuple[Tensor, Tensor]]:
        """Put into the cache what the target said of each text up to the token before the last.

        Returns each layer's keys and values [R, G, used, d] of these texts.
        """
        starts = [self._cache.lengths[reading.context.row] for reading in readings]
        spans = [
            Span(reading.context.row, start, reading.end - 1 - start)
            for reading, start in zip(readings, starts, strict=True)
        ]
        self._cache.place(spans)
        taps = self._head.config.taps
        seen = [
            features_of(reading.context).get(taps, span.start, span.end)
            for reading, span in zip(readings, spans, strict=True)
        ]
        states = pad_sequence(seen, batch_first=True)
        offsets = torch.tensor(starts, device=states.device)[:, None]
        held: list[tuple[Tensor, Tensor]] = []
        self._head.read(
            states,
            offsets + torch.arange(states.shape[1], device=states.device),
            lambda number, k, v: held.append(self._cache.update(k, v, number)),
            max(starts) + states.shape[1],
        )
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
            keys, values = (
                torch.cat((old[rows], new), dim=2)
                for old, new in zip(held[number], (k, v), strict=True)
            )
            return scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, enable_gqa=q.shape[1] != keys.shape[1]
            )

        last = torch.tensor(tokens, device=device)
        longest = max(at for _, at in ends) + self._head.block.size
        states = self._head(last, places, attend, longest)
        return list(torch.split(states, [reading.num for reading in readings]))
