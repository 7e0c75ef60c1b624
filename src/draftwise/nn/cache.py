"""The ragged KV cache: each row owns its storage; cropping a row = changing a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from draftwise.nn.library_states import LibraryStates
from draftwise.nn.recurrent import States
from draftwise.nn.ropes import Turns
from draftwise.nn.storage import Shelf, Storage, allocate
from draftwise.nn.windows import BLOCK, Near, Windows

UNLIMITED = 1 << 30
"""Tokens: no limit but memory."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where one row's tokens go in a forward: ``count`` slots of ``row`` from ``start`` on."""

    row: int
    start: int
    count: int

    @property
    def end(self) -> int:
        """The first slot behind them, which is how many slots they may look at."""
        return self.start + self.count


class RaggedCache(LibraryStates, Cache):  # type: ignore[misc]
    """Keys and values of rows that come and go, each with a length and storage of its own.

    ``lengths`` says how many tokens of each row are valid; whatever lies behind is garbage that no
    forward looks at, so a rejected draft is removed by lowering a number. A row's storage grows by
    blocks as its text grows, and is freed when it is closed, without touching the others.
    ``docs/kv_cache.md`` draws it. Closed rows have length 0.
    capacity: tokens that a row may have, at most. shelf: None = storage in blocks. states: of
    recurrent layers; None = the model has none. turns: of a rope with two tables; None = of none.
    windows: layers that forget what lies too far back; None = all keep everything.
    """

    def __init__(
        self,
        num_rows: int = 0,
        capacity: int = UNLIMITED,
        shelf: Shelf | None = None,
        states: States | None = None,
        turns: Turns | None = None,
        windows: Windows | None = None,
    ) -> None:
        Cache.__init__(self, layers=[])
        self.capacity, self._shelf = capacity, shelf
        self.lengths: list[int] = []
        self.states, self.turns = states or States(), turns
        self._storage: list[Storage] = []
        self._windows, self._recent = windows, list[Storage]()  # of the layers that forget
        self._settled: list[int] = []
        self._spans: Sequence[Span] = ()
        self._is_packed = False
        self._views: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for row in range(num_rows):
            self.open(row, None if capacity == UNLIMITED else capacity)

    def open(self, row: int, expected: int | None = None) -> None:
        """Begin a row, empty.

        expected: tokens that it will have; storage from a shelf is taken for all of them at once.
        """
        missing = row + 1 - len(self.lengths)
        self.lengths += [0] * missing
        self._settled += [0] * missing
        self._storage += [Storage() for _ in range(missing)]
        self._recent += [Storage() for _ in range(missing)]
        if self._shelf is not None and expected is not None:
            self._storage[row] = self._shelf.take(expected)
        self.states.open(row)
        if self.turns is not None:
            self.turns.open(row)

    def close(self, row: int) -> None:
        """Forget a row and free what it has; the others stay where they are."""
        if self._shelf is not None:
            self._shelf.give(self._storage[row])
        self.lengths[row], self._storage[row] = 0, Storage()
        self._settled[row], self._recent[row] = 0, Storage()
        self.states.open(row)

    def copy(self, source: int, row: int, length: int) -> None:
        """Let ``row``, which is empty, begin with the first tokens of another row.

        length: as ``reachable`` gave it.
        """
        if self._shelf is None:
            self._storage[row] = self._storage[source].grown(length, self._num_slots(length))
        else:
            if length > self._storage[row].num_slots:
                self._storage[row] = self._shelf.take(length)
            self._fill(self._storage[row], self._storage[source], length)
        if self._windows is not None:
            recent = self._recent[source]
            first = min(recent.first, length)
            self._recent[row] = recent.grown(length, length - first, first)
        self.states.copy(source, row, length)
        if self.turns is not None:
            self.turns.copy(source, row, length)
        self.lengths[row] = self._settled[row] = length

    def place(
        self,
        spans: Sequence[Span],
        packed: bool = False,
        fed: Sequence[Any] = (),
    ) -> None:
        """Say where the coming forward writes; raises ValueError where it does not fit.

        packed: its rows come end to end, [1, sum of counts], and not side by side, [R, widest].
        fed: [R], their tokens; states are read again from them where they are not known.
        """
        longest = max(span.end for span in spans)
        if longest > self.capacity:
            raise ValueError(
                f"the KV cache holds {self.capacity} tokens a row, and {longest} are needed"
            )
        self._spans, self._is_packed, self._views = spans, packed, {}
        for span in spans:
            if span.end > self._storage[span.row].num_slots:
                self._grow(span.row, span.end)
            if self._windows is not None:
                self._slide(self._windows, span)
        if fed and self.states.is_used:
            self.states.begin([span.row for span in spans], [span.start for span in spans], fed)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's states; return what attention reads.

        Side by side: [R, H, T, D] are written, and [R, H, used, D] returned, shorter rows followed
        by zeros; of a single row that is a view. Packed: [1, H, N, D] are written and come back as
        they are; attention reads ``views``.
        """
        if not self._spans:
            raise RuntimeError("place() comes before a forward through this cache")
        views, first = [], 0
        for index, span in enumerate(self._spans):
            storage = self.storage(span.row, layer_idx)
            if self._is_packed:
                taken = (slice(0, 1), slice(None), slice(first, first + span.count))
                first += span.count
            else:
                taken = (slice(index, index + 1), slice(None), slice(0, span.count))
            new = key_states[taken], value_states[taken]
            views.append(storage.write(layer_idx, span.start, *new))
        if self._is_packed:
            self._views[layer_idx] = views
            return key_states, value_states
        return _side_by_side([k for k, _ in views]), _side_by_side([v for _, v in views])

    def views(self, layer_idx: int) -> list[tuple[Tensor, Tensor]]:
        """[1, H, used, D] keys and values of each row of a packed forward, after its update."""
        return self._views[layer_idx]

    def storage(self, row: int, layer_idx: int = -1) -> Storage:
        """What one row has allocated for a layer; -1 = one that keeps everything."""
        forgets = self._windows is not None and layer_idx in self._windows.layers
        return (self._recent if forgets else self._storage)[row]

    def near(self, index: int | None = None) -> Near | None:
        """What layers that forget read of the rows placed, or of one of them; None = all do all."""
        if self._windows is None:
            return None
        spans = self._spans if index is None else [self._spans[index]]
        return [self._recent[span.row].first for span in spans], [span.end for span in spans]

    def reachable(self, row: int, length: int) -> int:
        """How far a row can be cut back to at most so many tokens; 0 = read it from the beginning.

        For keys and values that is any length behind which windows are still whole, for states the
        last one that is known.
        """
        found = max(0, self.states.reachable(row, length))
        return found if self._is_whole(row, found) else 0

    def crop(self, row: int, length: int) -> int:
        """Cut a row back to at most so many tokens, as far as it can be; returns its length."""
        found = self.reachable(row, min(length, self.lengths[row]))
        if not found:
            self.states.open(row)
            self._recent[row] = Storage()
        self.lengths[row], self._settled[row] = found, min(found, self._settled[row])
        return found

    def settle(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Take rows back to so many tokens, for good: what a longer way back needs is dropped."""
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] = self._settled[row] = count
            self.states.settle(row, count)

    def keep_path(self, row: int, base: int, path: Sequence[int]) -> None:
        """Of a tree fed at slots ``base``, ``base + 1``, ... keep one path, and cut the rest off.

        path: increasing offsets from ``base``. Keys know their position, which on a path is the
        slot they move to, so moving them is all.
        """
        self.settle([row], [base + len(path)])
        if list(path) == list(range(len(path))):
            return
        if self.turns is not None:
            self.turns.keep_path(row, base, path)
        for storage in (self._storage[row], self._recent[row]):
            first = base - storage.first
            for tensor in storage.tensors:
                index = torch.as_tensor(path, device=tensor.device) + first
                tensor[:, :, first : first + len(path)] = tensor[:, :, index]

    @property
    def num_bytes(self) -> int:
        """Bytes of the storage allocated now, and of states."""
        stored = (*self._storage, *self._recent)
        return sum(storage.num_bytes for storage in stored) + self.states.num_bytes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The first slot of the coming write (the library asks; our masks do not)."""
        return max((span.start for span in self._spans), default=0)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """As ``get_seq_length``."""
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Slots that attention will see, and the first of them."""
        return max((span.end for span in self._spans), default=query_length), 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Tokens that a row can hold."""
        return self.capacity

    get_max_length = get_max_cache_shape  # its name since transformers 5.20

    def _num_slots(self, num_tokens: int) -> int:
        """Slots of a row that has so many tokens."""
        block = max(BLOCK, num_tokens // 8)
        return min(-(-num_tokens // block) * block, self.capacity)

    def _grow(self, row: int, num_tokens: int) -> None:
        """Room for so many tokens, with what is valid now copied over."""
        old = self._storage[row]
        if self._shelf is None:
            self._storage[row] = old.grown(self.lengths[row], self._num_slots(num_tokens))
            return
        self._storage[row] = self._shelf.take(num_tokens)
        self._fill(self._storage[row], old, self.lengths[row])
        self._shelf.give(old)

    def _slide(self, windows: Windows, span: Span) -> None:
        """Room for a span in the layers that forget; raises ValueError where too much is gone."""
        if not self._is_whole(span.row, span.start):
            raise ValueError(
                f"row {span.row} was cut back to {span.start} tokens, and its windows were not kept"
            )
        recent, settled = self._recent[span.row], min(self._settled[span.row], span.start)
        if not windows.fits(recent, settled, span.end):
            self._recent[span.row] = windows.slide(recent, settled, span.start, span.end)

    def _is_whole(self, row: int, length: int) -> bool:
        """Whether nothing is gone that a token behind so many may look at."""
        return self._windows is None or self._recent[row].first <= self._windows.first(length)

    def _fill(self, new: Storage, old: Storage, length: int) -> None:
        """Copy the first ``length`` tokens from one storage to another, each where it is."""
        for before, after in ((old.keys, new.keys), (old.values, new.values)):
            for layer, tensor in before.items():
                if layer not in after:
                    after[layer] = allocate(tensor, new.num_slots)
                after[layer][:, :, :length] = tensor[:, :, :length]


def _side_by_side(views: Sequence[Tensor]) -> Tensor:
    """[R, H, used, D] of rows of different lengths, the shorter ones followed by zeros."""
    if len(views) == 1:
        return views[0]
    used = max(view.shape[2] for view in views)
    _, heads, _, size = views[0].shape
    found = views[0].new_zeros((len(views), heads, used, size))
    for index, view in enumerate(views):
        found[index, :, : view.shape[2]] = view[0]
    return found
