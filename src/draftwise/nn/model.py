"""One adapter for every Hugging Face causal LM: tokens in at ragged rows, logits out."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.cache import UNLIMITED, RaggedCache, Span
from draftwise.nn.calling import Caller, first_device
from draftwise.nn.compiled import WIDTHS, CompiledSteps
from draftwise.nn.feeds import read_again, read_alone, read_turned
from draftwise.nn.logits import Logits, last_places
from draftwise.nn.masks import Fed, Masks, packed_ids, ragged_slots, stacked_ids
from draftwise.nn.ropes import Turns, switch_of
from draftwise.nn.sight import Sight
from draftwise.nn.storage import Storage
from draftwise.nn.trees import Branches
from draftwise.nn.windows import Windows

Forward = tuple[Tensor, dict[int, list[Tensor]], list[int]]
"""Flat logits [M, V], hidden states by tap and row, and where in the logits each row ends."""
BULK_LOGITS = 1 << 24
"""Largest number of logits (tokens x vocabulary) that one prefill forward may return."""


class CausalModel:
    """A causal LM that reads and extends a ``RaggedCache`` with masks and positions of our own.

    The module itself is never changed. Sliding-window and mixed layers get the masks they expect.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        config = module.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.bulk_logits = BULK_LOGITS
        self.serves_trees = True  # until the self-check says otherwise
        self.num_layers = int(config.num_hidden_layers)
        self.hidden_size = int(config.hidden_size)
        self.compiled: CompiledSteps | None = None
        self.token_bytes = 0  # of keys and values; the self-check measures it,
        self._near_bytes = 0  # and what of it is of layers with windows
        self.max_positions = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
        self.num_parameters = sum(p.numel() for p in module.parameters())
        self.device: torch.device = first_device(module)
        self.dtype: torch.dtype = module.dtype
        self._masks = Masks(config, self.dtype, self.device)
        self.packs = self._masks.is_packable  # until the self-check says otherwise
        self.forgets = True  # what lies behind a window, where layers have one; as above
        self._sight = Sight(self._masks, self.device)
        self._call = Caller(module, self.num_layers)
        self.has_states = self._call.has_states
        self.is_alone = False  # each row in a forward of its own; the self-check says
        # tokens that its rope's first table is for, 0 = it has one
        self.switch, limit = switch_of(module, self._call.can_keep and not self.has_states)
        self.max_positions = min(limit or self.max_positions, self.max_positions)

    @property
    def taps(self) -> tuple[int, ...]:
        """The hidden states that forwards return, in order."""
        return self._call.taps.places

    def tap(self, indices: Iterable[int]) -> None:
        """Return hidden states from now on: 0 = embeddings, i = after layer i, the last normed.

        They are numbered as in ``transformers``; negative ones count from the end.
        Raises ValueError for a layer that the model does not have.
        """
        places = range(self.num_layers + 1)
        try:
            self._call.taps.ask([places[index] for index in indices])
        except IndexError:
            raise ValueError(
                f"hidden states {sorted(indices)} are asked of {self.name}, which has "
                f"{self.num_layers} layers"
            ) from None

    def new_cache(
        self, num_rows: int = 0, capacity: int = UNLIMITED, forgets: bool = False
    ) -> RaggedCache:
        """An empty cache with ``num_rows`` rows open, each of at most ``capacity`` tokens.

        forgets: whether layers with windows may drop what no token behind ``settle`` looks at.
        """
        turns = Turns() if self.switch else None
        windows = self.windows if forgets else None
        return self._call.new_cache(num_rows, capacity, self.compiled, turns, windows)

    @property
    def windows(self) -> Windows | None:
        """Of layers that forget; None = none does, as where texts may have to be read again."""
        keeps = self.has_states or self.switch or self.compiled is not None or not self.forgets
        return None if keeps else self._masks.windows

    def measure(self, storage: Storage) -> None:
        """Learn how many bytes a token takes, from storage that was written."""
        near = self._masks.windows.layers if self._masks.windows else ()
        each = {
            layer: storage.keys[layer].nbytes + storage.values[layer].nbytes
            for layer in storage.keys
        }
        self.token_bytes = sum(each.values()) // max(1, storage.num_slots)
        self._near_bytes = sum(each.get(layer, 0) for layer in near) // max(1, storage.num_slots)

    def row_bytes(self, num_tokens: int, num_fed: int) -> int:
        """Keys and values of a row with so many tokens, fed at most ``num_fed`` at once."""
        most = num_tokens if self.windows is None else self.windows.most_slots(num_fed)
        gone = max(0, num_tokens - most) * self._near_bytes
        return num_tokens * self.token_bytes - gone

    def compile(self, widths: Sequence[int] = WIDTHS, backend: Any = "inductor") -> None:
        """From now on read short feeds of single rows with compiled forwards of these widths.

        backend: as for ``torch.compile``. Layers with states are never compiled: nothing changes.
        """
        if not self.has_states:
            self.compiled = CompiledSteps(self.module, self.name, widths, backend)

    def extend(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Fed],
        keep: int,
        trees: Sequence[Branches | None] = (),
    ) -> Logits:
        """Feed each of R rows its next tokens (at least one) and advance the cache's lengths.

        tokens: of each row as the host knows them, or [n] on the device. trees: [R], how a row's
        tokens branch, None = each follows the one before; nothing = all do.
        Returns the logits after the last ``keep`` tokens of each row, or all that it was fed: a
        feed with more than ``BULK_LOGITS`` of them goes in two forwards, the first without logits.
        Raises ValueError if a row does not fit into the cache.
        """
        if self.is_alone and len(rows) > 1:
            return read_alone(self.extend, cache, rows, tokens, keep, trees)
        if self.has_states or self.switch:  # read again from tokens that the host must know
            known = [fed.tolist() if isinstance(fed, Tensor) else fed for fed in tokens]
            how = read_again if self.has_states else partial(read_turned, switch=self.switch)
            return how(self._extend, cache, rows, known, keep, trees)
        return self._extend(cache, rows, tokens, keep, trees)

    def _extend(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Fed],
        keep: int,
        trees: Sequence[Branches | None],
    ) -> Logits:
        """All rows in one forward, or in two."""
        hidden: dict[int, list[Tensor]] = {}
        longest = max(map(len, tokens))
        size = len(tokens) * (keep if self._call.can_keep else longest) * self.vocab_size
        if (
            longest > keep and size > self.bulk_logits and not self.switch
        ):  # more than wanted at once
            head = [t[: max(0, len(t) - keep)] for t in tokens]
            hidden = self._forward(cache, rows, head, (), 0)[1]
            tokens = [t[max(0, len(t) - keep) :] for t in tokens]
        logits, states, ends = self._forward(cache, rows, tokens, trees if any(trees) else (), keep)
        for tap, new in states.items():
            before = hidden.get(tap)
            pairs = zip(before, new, strict=True) if before else ()
            hidden[tap] = [torch.cat(pair) for pair in pairs] or new
        return Logits(logits, ends, sum(map(len, tokens)), hidden)

    def _forward(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Fed],
        trees: Sequence[Branches | None],
        keep: int,
    ) -> Forward:
        """One forward of ragged rows: flat logits, hidden states by tap and row, ends in flat."""
        spans = [Span(row, cache.lengths[row], len(t)) for row, t in zip(rows, tokens, strict=True)]
        forward = self._packed_forward if self.packs and len(rows) > 1 else self._padded_forward
        made = self._compiled_forward(cache, spans, tokens, trees)
        output = made or forward(cache, spans, tokens, trees, keep)
        for span in spans:
            cache.lengths[span.row] = span.end
        return output

    def _compiled_forward(
        self,
        cache: RaggedCache,
        spans: Sequence[Span],
        tokens: Sequence[Fed],
        trees: Sequence[Branches | None],
    ) -> Forward | None:
        """One row at a fixed width over all its slots; None where that is not possible."""
        if self.compiled is None or len(spans) > 1:
            return None
        span = spans[0]
        if (width := self.compiled.width(cache, span.row, span.count)) is None:
            return None
        storage = cache.storage(span.row)
        places = ragged_slots([span.start], [span.count], width)
        positions, mask = self._sight.of_places(trees, places, storage.num_slots)
        ids = stacked_ids(tokens, width, self.device)
        feed = (ids, positions, self._sight.tensor(places), mask)
        output = self.compiled(storage, *feed, taps=self.taps)
        if output is None:
            return None
        hidden = {tap: [output.hidden_states[tap][0, : span.count]] for tap in self.taps}
        return output.logits[0, : span.count], hidden, [span.count]

    def _padded_forward(
        self,
        cache: RaggedCache,
        spans: Sequence[Span],
        tokens: Sequence[Fed],
        trees: Sequence[Branches | None],
        keep: int,
    ) -> Forward:
        """Rows side by side, [R, T], padded at the end to the longest."""
        counts = [span.count for span in spans]
        width = max(counts)
        cache.place(spans, fed=tokens)
        positions, mask = self._sight.of_rows(spans, trees, cache.near())
        kept = last_places(counts, keep) or [0]
        extra: dict[str, Any] = {}
        if len(kept) < width and self._call.can_keep:
            is_end = kept[0] == width - len(kept)
            extra["logits_to_keep"] = len(kept) if is_end else self._sight.tensor(list(kept))
        ids = stacked_ids(tokens, width, self.device)
        output, found = self._call(cache, ids, positions, mask, **extra)
        hidden = {
            tap: [states[row, :count] for row, count in enumerate(counts)]
            for tap, states in found.items()
        }
        if (columns := output.logits.shape[1]) < width:
            counts = [bisect.bisect_left(kept, count) for count in counts]
        ends = [row * columns + count for row, count in enumerate(counts)]
        return output.logits.flatten(0, 1), hidden, ends

    def _packed_forward(
        self,
        cache: RaggedCache,
        spans: Sequence[Span],
        tokens: Sequence[Fed],
        trees: Sequence[Branches | None],
        keep: int,
    ) -> Forward:
        """Rows end to end, [1, N], each attending to its own storage: nothing is padded."""
        fed = [index for index, span in enumerate(spans) if span.count]
        counts = [span.count for span in spans]
        cache.place([spans[index] for index in fed], packed=True)
        looks = [
            self._sight.of_row(spans[i], trees[i] if trees else None, cache.near(place))
            for place, i in enumerate(fed)
        ]
        positions, masks = zip(*looks, strict=True)
        edges = [0, *accumulate(counts)]
        extra: dict[str, Any] = {}
        kept = [min(count, keep) for count in counts]
        if sum(kept) < edges[-1] and self._call.can_keep:
            tails = zip(edges[1:], kept, strict=True)
            places = [place for end, num in tails for place in range(end - num, end)]
            extra["logits_to_keep"] = self._sight.tensor(places or [0])
        output, found = self._call(
            cache,
            packed_ids(tokens, self.device),
            torch.cat(positions)[None],
            self._masks.pack(masks, [counts[index] for index in fed], cache),
            **extra,
        )
        hidden = {tap: [h[0, a:b] for a, b in pairwise(edges)] for tap, h in found.items()}
        return output.logits[0], hidden, list(accumulate(kept)) if extra else edges[1:]
