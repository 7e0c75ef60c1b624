"""The ragged KV cache: storage per row, sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from draftwise.nn.hybrid.states import LibraryStates, States

UNLIMITED = 1 << 30  # tokens: no limit but memory
BLOCK, WINDOW_BLOCK = 32, 8
"""Tokens by which storage of a row, and of its windowed layers, grows; or an eighth if more."""
SPARE = 32
"""Tokens below its settled length, at most a window, to which a windowed row can be cut back."""
Block = tuple[Tensor, list[tuple[bool, int]]]
"""n tensors as one, [n, H, slots, D], and of each whether it holds values, and its layer."""
WindowSlots = tuple[Sequence[int], Sequence[int]]
"""The first slot of each row that windowed layers read, and the end of each row."""


@dataclass(slots=True)
class RowKVCache:
    """Keys and values [1, H, slots, D] of one row, by layer; allocated at a layer's first write.

    num_slots: slots of each layer's tensors. blocks: the tensors that keys and values are views of;
    empty before the row has grown. first: the position of slot 0.
    """

    num_slots: int = 0
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    first: int = 0

    @property
    def tensors(self) -> list[Tensor]:
        return [block for block, _ in self.blocks] or [*self.keys.values(), *self.values.values()]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's [1, H, n, D] from position ``start`` on; return all up to its end."""
        if layer not in self.keys:  # zeros: values beyond a row's length must be finite
            for tensors, new in ((self.keys, keys), (self.values, values)):
                tensors[layer] = new.new_zeros((1, new.shape[1], self.num_slots, new.shape[3]))
            self.blocks = []
        first = start - self.first
        end = first + keys.shape[2]
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, first:end] = keys
        all_values[:, :, first:end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def grown(self, length: int, num_slots: int, first: int = 0) -> RowKVCache:
        """A copy of the tokens from ``first`` to ``length``, with ``num_slots`` slots."""
        new, num = RowKVCache(num_slots, first=first), length - first
        kept = slice(first - self.first, length - self.first)
        for old, places in self.blocks or self._joined():
            count, heads, _, size = old.shape
            block = old.new_empty((count, heads, num_slots, size))
            block[:, :, :num] = old[:, :, kept]
            block[:, :, num:] = 0  # values beyond a row's length must be finite
            new.blocks.append((block, places))
            for index, (is_value, layer) in enumerate(places):
                (new.values if is_value else new.keys)[layer] = block[index : index + 1]
        return new

    def _joined(self) -> list[Block]:
        groups: dict[object, list[tuple[bool, int]]] = {}
        for is_value, tensors in ((False, self.keys), (True, self.values)):
            for layer, tensor in tensors.items():
                kind = (tensor.shape, tensor.dtype, tensor.device)
                groups.setdefault(kind, []).append((is_value, layer))
        return [
            (torch.cat([(self.values if v else self.keys)[layer] for v, layer in places]), places)
            for places in groups.values()
        ]


@dataclass(frozen=True, slots=True)
class Windows:
    """Layers with limited attention, and their limit in tokens: a window or a chunk (0 = none)."""

    layers: frozenset[int]
    window: int = 0
    chunk: int = 0

    def first(self, position: int) -> int:
        """The first slot that a token at this position or later may attend to."""
        firsts = [position - self.window + 1] if self.window else []
        if self.chunk:
            firsts.append(position // self.chunk * self.chunk)
        return max(0, min(firsts))

    def slid(self, storage: RowKVCache, settled: int, length: int, end: int) -> RowKVCache:
        """Storage up to ``end`` with at most twice the slots needed: the same or a copy, from the
        first slot that tokens after ``settled``, less the spare ones, attend to.
        """
        kept_from = self.first(max(0, settled - self._spare))
        wanted = self._num_slots(end - kept_from)
        if end - storage.first <= storage.num_slots <= 2 * wanted:
            return storage
        first = max(storage.first, kept_from)
        return storage.grown(length, self._num_slots(end - first), first)

    def most_slots(self, num_fed: int) -> int:
        """Maximum slots of a row of any length that is fed at most ``num_fed`` tokens at once."""
        return self._num_slots(max(self.window, self.chunk) + self._spare + num_fed)

    @property
    def _spare(self) -> int:
        return min(SPARE, max(self.window, self.chunk))

    def _num_slots(self, num_tokens: int) -> int:
        """Add an eighth, so that sliding does not copy the storage in every round."""
        return num_tokens + max(WINDOW_BLOCK, num_tokens // 8)


def from_first(mask: Tensor, firsts: Sequence[int], ends: Sequence[int]) -> Tensor:
    """Cut a mask [R or 1, 1, T, slots] to [R, 1, T, used], from each row's first slot on."""
    if len(set(firsts)) == 1:
        return mask[..., firsts[0] :]
    used = max(end - first for first, end in zip(firsts, ends, strict=True))
    rows = mask.expand(len(firsts), *mask.shape[1:])
    cut = [row[..., first : first + used] for row, first in zip(rows, firsts, strict=True)]
    return torch.stack([pad(row, (0, used - row.shape[-1])) for row in cut])


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Where a forward writes a row's tokens: ``count`` slots of ``row`` from ``start`` on."""

    row: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


class RaggedCache(LibraryStates, Cache):  # type: ignore[misc]
    """A KV cache whose rows have separate lengths and storage, and are opened and closed singly.

    ``lengths``: valid tokens of each row, 0 if closed; no forward attends beyond them, so rollback
    lowers a number. Storage grows by blocks and is freed when its row is closed
    (``docs/kv_cache.md``). capacity: maximum tokens of a row. states: of recurrent layers.
    windows: layers that drop old tokens, or None.
    """

    def __init__(
        self,
        num_rows: int = 0,
        capacity: int = UNLIMITED,
        states: States | None = None,
        windows: Windows | None = None,
    ) -> None:
        Cache.__init__(self, layers=[])
        self.capacity = capacity
        self.lengths: list[int] = []
        self.states = states or States()
        self._storage: list[RowKVCache] = []
        self._empty = RowKVCache()  # the blocks of a row without slots, once they are known
        self._windows, self._recent = windows, list[RowKVCache]()  # storage of windowed layers
        self._settled: list[int] = []
        self._spans: Sequence[RowSpan] = ()
        self._is_packed = False
        # by layer, [1, H, used, D] keys and values of each row of a packed forward
        self.views: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for row in range(num_rows):
            self.open(row)

    def open(self, row: int) -> None:
        """Open an empty row."""
        missing = row + 1 - len(self.lengths)
        self.lengths += [0] * missing
        self._settled += [0] * missing
        self._storage += [RowKVCache() for _ in range(missing)]
        self._recent += [RowKVCache() for _ in range(missing)]
        self.states.open(row)

    def close(self, row: int) -> None:
        self.lengths[row], self._storage[row] = 0, RowKVCache()
        self._settled[row], self._recent[row] = 0, RowKVCache()
        self.states.open(row)

    def copy(self, source: int, row: int, length: int) -> None:
        """Copy the first ``length`` (``reachable``) tokens of a row to an empty ``row``."""
        self._storage[row] = self._storage[source].grown(length, self._num_slots(length))
        if self._windows is not None:
            recent = self._recent[source]
            first = min(recent.first, length)
            self._recent[row] = recent.grown(length, length - first, first)
        self.states.copy(source, row, length)
        self.lengths[row] = self._settled[row] = length

    def place(
        self, spans: Sequence[RowSpan], packed: bool = False, fed: Sequence[Any] = ()
    ) -> None:
        """Set where the next forward writes; raises ValueError if it does not fit.

        packed: rows are concatenated, [1, sum of counts], instead of padded, [R, widest]. fed: [R]
        tokens of the rows, from which recurrent states can be recomputed.
        """
        longest = max([span.end for span in spans])
        if longest > self.capacity:
            raise ValueError(
                f"the KV cache holds {self.capacity} tokens a row, and {longest} are needed"
            )
        self._spans, self._is_packed, self.views = spans, packed, {}
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
        """Write one layer's keys and values; return those that attention reads.

        Padded: [R, H, T, D] in, [R, H, used, D] out, shorter rows followed by zeros; a view for a
        single row. Packed: [1, H, N, D] in and out unchanged; attention reads ``views``.
        """
        if not self._spans:
            raise RuntimeError("place() comes before a forward through this cache")
        if len(self._spans) == 1 and not self._is_packed:
            span = self._spans[0]
            storage = self.storage(span.row, layer_idx)
            return storage.write(layer_idx, span.start, key_states, value_states)
        views, first = [], 0
        for index, span in enumerate(self._spans):
            storage = self.storage(span.row, layer_idx)
            row, begin = (0, first) if self._is_packed else (index, 0)
            taken = (slice(row, row + 1), slice(None), slice(begin, begin + span.count))
            new = key_states[taken], value_states[taken]
            views.append(storage.write(layer_idx, span.start, *new))
            first += span.count
        if self._is_packed:
            self.views[layer_idx] = views
            return key_states, value_states
        return _side_by_side([k for k, _ in views]), _side_by_side([v for _, v in views])

    def storage(self, row: int, layer_idx: int = -1) -> RowKVCache:
        """The storage of one row for a layer; -1 = any layer without a window."""
        forgets = self._windows is not None and layer_idx in self._windows.layers
        return (self._recent if forgets else self._storage)[row]

    def window_slots(self, index: int | None = None) -> WindowSlots | None:
        """Slots that windowed layers read, of all placed rows or of one; None = no window."""
        if self._windows is None:
            return None
        spans = self._spans if index is None else [self._spans[index]]
        return [self._recent[span.row].first for span in spans], [span.end for span in spans]

    def reachable(self, row: int, length: int) -> int:
        """The longest length up to ``length`` that a row can be cut back to; 0 = recompute all.
        A length is reachable if its windows are complete and its recurrent state is known.
        """
        found = max(0, self.states.reachable(row, length))
        return found if self._is_whole(row, found) else 0

    def crop(self, row: int, length: int) -> int:
        """Cut a row back to the longest reachable length up to ``length``, and return it."""
        found = self.reachable(row, min(length, self.lengths[row]))
        if not found:
            self.states.open(row)
            self._recent[row] = RowKVCache()
        self.lengths[row], self._settled[row] = found, min(found, self._settled[row])
        return found

    def settle(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Commit rows at ``counts`` tokens, and free states that only a longer rollback needs."""
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] = self._settled[row] = count
            self.states.settle(row, count)

    def keep_path(self, row: int, base: int, path: Sequence[int]) -> None:
        """Keep one path of a tree fed at slots ``base``, ``base + 1``, ..., and drop the rest.

        path: increasing offsets from ``base``. Keys are rotated for their position, which on a path
        is the slot that they move to.
        """
        self.settle([row], [base + len(path)])
        if list(path) == list(range(len(path))):
            return
        for storage in (self._storage[row], self._recent[row]):
            first = base - storage.first
            for tensor in storage.tensors:
                index = torch.as_tensor(path, device=tensor.device) + first
                tensor[:, :, first : first + len(path)] = tensor[:, :, index]

    @property
    def num_bytes(self) -> int:
        stored = (*self._storage, *self._recent)
        return sum(storage.num_bytes for storage in stored) + self.states.num_bytes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The first slot of the next write; read by transformers, not by the masks here."""
        return max((span.start for span in self._spans), default=0)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return max((span.end for span in self._spans), default=query_length), 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.capacity

    get_max_length = get_max_cache_shape  # its name since transformers 5.20

    def _num_slots(self, num_tokens: int) -> int:
        block = max(BLOCK, num_tokens // 8)
        return min(-(-num_tokens // block) * block, self.capacity)

    def _grow(self, row: int, num_tokens: int) -> None:
        old = self._storage[row]
        old = old if old.keys else self._empty
        new = self._storage[row] = old.grown(self.lengths[row], self._num_slots(num_tokens))
        if new.blocks and not self._empty.blocks:
            self._empty = new.grown(0, 0)

    def _slide(self, windows: Windows, span: RowSpan) -> None:
        """Make room for a span in windowed layers; ValueError if needed slots were dropped."""
        if not self._is_whole(span.row, span.start):
            raise ValueError(
                f"row {span.row} was cut back to {span.start} tokens, and its windows were not kept"
            )
        recent, settled = self._recent[span.row], min(self._settled[span.row], span.start)
        self._recent[span.row] = windows.slid(recent, settled, span.start, span.end)

    def _is_whole(self, row: int, length: int) -> bool:
        """Whether all slots that a token at position ``length`` attends to are kept."""
        return self._windows is None or self._recent[row].first <= self._windows.first(length)


def _side_by_side(views: Sequence[Tensor]) -> Tensor:
    """Stack rows of different lengths to [R, H, used, D], with zeros at the end."""
    used = max(view.shape[2] for view in views)
    _, heads, _, size = views[0].shape
    found = views[0].new_zeros((len(views), heads, used, size))
    for index, view in enumerate(views):
        found[index, :, : view.shape[2]] = view[0]
    return found
