"""One adapter for every Hugging Face causal LM: tokens in at ragged rows, logits out."""

from __future__ import annotations

import bisect
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.cache import Placement, RaggedCache
from draftwise.nn.compiled import WIDTHS, CompiledSteps, StepOutput
from draftwise.nn.masks import Masks, ragged_slots
from draftwise.nn.trees import Branches, tree_masks
from draftwise.types import Ints

BULK_LOGITS = 1 << 24
"""Largest number of logits (tokens x vocabulary) that one prefill forward may return."""


@dataclass(frozen=True, slots=True)
class Logits:
    """What a ragged forward returned: block [R, T, V], where row r's last is number counts[r] - 1.

    hidden: for each tap of the model, R tensors [num_fed, D]: hidden states after every token that
    was fed to the row, those fed without logits included.
    """

    block: Tensor
    counts: Sequence[int]
    hidden: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)

    def last(self, row: int, num: int) -> Tensor:
        """[num, V] after each of the last ``num`` tokens that were fed to this row."""
        return self.block[row, self.counts[row] - num : self.counts[row]]


class CausalModel:
    """A causal LM that reads and extends a ``RaggedCache`` with masks and positions of our own.

    The module itself is never changed. Sliding-window and mixed layers get the masks they expect.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        config = module.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.serves_trees = True  # until the self-check says otherwise
        self.num_layers = int(config.num_hidden_layers)
        self.hidden_size = int(config.hidden_size)
        self.taps: frozenset[int] = frozenset()
        self.compiled: CompiledSteps | None = None
        self.max_positions = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
        self.num_parameters = sum(p.numel() for p in module.parameters())
        self.device: torch.device = module.device
        self.dtype: torch.dtype = module.dtype
        self._masks = Masks(config, self.dtype)
        self._numbers = torch.arange(0, device=self.device)
        self._can_keep = "logits_to_keep" in inspect.signature(module.forward).parameters

    def tap(self, indices: Iterable[int]) -> None:
        """Return hidden states from now on: 0 = embeddings, i = after layer i, the last normed.

        They are numbered as in ``transformers``; negative ones count from the end.
        Raises ValueError for a layer that the model does not have.
        """
        places = range(self.num_layers + 1)
        try:
            self.taps |= {places[index] for index in indices}
        except IndexError:
            raise ValueError(
                f"hidden states {sorted(indices)} are asked of {self.name}, which has "
                f"{self.num_layers} layers"
            ) from None

    def new_cache(self, num_rows: int, capacity: int) -> RaggedCache:
        """An empty cache for ``num_rows`` rows of at most ``capacity`` tokens."""
        made = RaggedCache if self.compiled is None else self.compiled.new_cache
        return made(num_rows, capacity)

    def compile(self, widths: Sequence[int] = WIDTHS, backend: Any = "inductor") -> None:
        """From now on read short feeds of single rows with compiled forwards of these widths.

        backend: as for ``torch.compile``.
        """
        self.compiled = CompiledSteps(self.module, self.name, widths, backend)

    def extend(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        keep: int,
        trees: Sequence[Branches | None] = (),
    ) -> Logits:
        """Feed each of R rows its next tokens (at least one) and advance the cache's lengths.

        trees: [R], how a row's tokens branch, None = each follows the one before; nothing = all do.
        Returns the logits after the fed tokens, at least after the last ``keep`` of each row: a
        feed whose [R, T, V] block would exceed ``BULK_LOGITS`` goes in two forwards, the first
        without logits.
        Raises ValueError if a row does not fit into the cache.
        """
        longest = max(len(t) for t in tokens)
        hidden: dict[int, list[Tensor]] = {}
        if longest > keep and len(rows) * longest * self.vocab_size > BULK_LOGITS:
            head = [t[: max(0, len(t) - keep)] for t in tokens]
            hidden = self._hidden(self._forward(cache, rows, head, (), [0]), head)
            tokens = [t[max(0, len(t) - keep) :] for t in tokens]
        kept = last_places([len(t) for t in tokens], keep)
        output = self._forward(cache, rows, tokens, trees if any(trees) else (), kept)
        for tap, states in self._hidden(output, tokens).items():
            before = hidden.get(tap)
            pairs = zip(before, states, strict=True) if before else ()
            hidden[tap] = [torch.cat(pair) for pair in pairs] or states
        counts = [len(t) for t in tokens]
        if output.logits.shape[1] < max(counts):
            counts = [bisect.bisect_left(kept, count) for count in counts]
        return Logits(output.logits, counts, hidden)

    def _hidden(self, output: Any, tokens: Sequence[Sequence[int]]) -> dict[int, list[Tensor]]:
        """The tapped hidden states of every row's own tokens."""
        return {
            tap: [output.hidden_states[tap][row, : len(fed)] for row, fed in enumerate(tokens)]
            for tap in sorted(self.taps)
        }

    def _forward(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        trees: Sequence[Branches | None],
        kept: Sequence[int],
    ) -> Any:
        """One forward of ragged rows, padded at the end to the longest: logits [R, T, V].

        kept: the columns that logits are wanted of; a module that cannot tell gives all.
        """
        counts = [len(t) for t in tokens]
        starts = [cache.lengths[row] for row in rows]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        output = self._compiled_forward(cache, starts, tokens, trees)
        if output is None:
            output = self._plain_forward(cache, rows, tokens, trees, kept)
        for row, end in zip(rows, ends, strict=True):
            cache.lengths[row] = end
        return output

    def _compiled_forward(
        self,
        cache: RaggedCache,
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        trees: Sequence[Branches | None],
    ) -> StepOutput | None:
        """The same at a fixed width over all slots; None where that is not possible."""
        counts = [len(t) for t in tokens]
        if self.compiled is None:
            return None
        width = self.compiled.width(cache, max(counts), starts[0] + counts[0])
        if width is None:
            return None
        places = ragged_slots(starts, counts, width)
        positions, mask = self._look(trees, places, cache.num_slots)
        ids = self._tensor([_padded(t, width) for t in tokens])
        feed = (ids, positions, self._tensor(places), mask)
        return self.compiled(cache, *feed, taps=sorted(self.taps))

    def _plain_forward(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        trees: Sequence[Branches | None],
        kept: Sequence[int],
    ) -> Any:
        """The same by the module itself, which reads no more slots than are used."""
        counts = [len(t) for t in tokens]
        starts = [cache.lengths[row] for row in rows]
        used = max(start + count for start, count in zip(starts, counts, strict=True))
        width = max(counts)
        is_even = min(starts) == used - width and min(counts) == width
        if is_even and not trees:
            # one token sees everything; from the first on it is plain causal attention
            needs_none = self._masks.can_skip and (width == 1 or width == used)
            slots, positions = None, self._slots(used)[used - width :][None]
            mask = None if needs_none else self._masks.make(positions, self._slots(used))
        else:
            places = ragged_slots(starts, counts)
            slots = self._tensor(places)
            positions, mask = self._look(trees, places, used)
        every = len(rows) == len(cache.lengths) and list(rows) == list(range(len(rows)))
        cache.place(
            Placement(None if every else self._tensor(rows), slots, used - width, width, used)
        )
        ids = tokens if is_even else [_padded(t, width) for t in tokens]
        extra: dict[str, Any] = {"output_hidden_states": True} if self.taps else {}
        if len(kept) < width and self._can_keep:
            is_end = kept[0] == width - len(kept)
            extra["logits_to_keep"] = len(kept) if is_end else self._tensor(list(kept))
        return self.module(
            input_ids=self._tensor(ids),
            attention_mask=mask,
            position_ids=positions.expand(len(counts), width),
            past_key_values=cache,
            use_cache=True,
            **extra,
        )

    def _look(
        self, trees: Sequence[Branches | None], places: Ints, used: int
    ) -> tuple[Tensor, Tensor | dict[str, Tensor]]:
        """Positions [R, T] of what is fed to ``places``, and its mask over the first slots."""
        if not trees:
            positions = self._tensor(places)
            return positions, self._masks.make(positions, self._slots(used))
        queries, keys, seen = tree_masks(trees, places, used)
        positions = self._tensor(queries)
        mask = self._masks.make(positions, self._tensor(keys)[:, None, None], self._tensor(seen))
        return positions, mask

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def _slots(self, num: int) -> Tensor:
        """[num] 0, 1, 2, ...: a view of one tensor that grows by doubling."""
        if num > len(self._numbers):
            self._numbers = torch.arange(2 * num, device=self.device)
        return self._numbers[:num]


def last_places(counts: Sequence[int], num: int) -> list[int]:
    """Columns, in order, in which some row has one of its last ``num`` tokens.

    >>> last_places([7, 3], 2)
    [1, 2, 5, 6]
    """
    return sorted({place for count in counts for place in range(max(0, count - num), count)})


def _padded(tokens: Sequence[int], width: int) -> list[int]:
    """The tokens, the last of them repeated (0 where there is none)."""
    return [*tokens, *[tokens[-1] if tokens else 0] * (width - len(tokens))]
