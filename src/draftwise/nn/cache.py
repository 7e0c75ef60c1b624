"""What a row keeps of its forwards: keys and values, recurrent states, hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from draftwise.nn.recurrent import Key, StateCheckpoint, States

UNLIMITED = 1 << 30  # tokens: no limit but memory
BLOCK = 32
"""Tokens by which storage of a row grows; an eighth of it if that is more."""
Block = tuple[Tensor, list[tuple[bool, int]]]
"""n tensors as one, [n, H, slots, D], and of each whether it holds values, and its layer."""


@dataclass(slots=True)
class RowKVCache:
    """Keys and values [1, H, slots, D] of one row, by layer; allocated at a layer's first write.

    num_slots: slots of each layer's tensors. blocks: the tensors that keys and values are views of;
    empty before the row has grown.
    """

    num_slots: int = 0
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    @property
    def tensors(self) -> list[Tensor]:
        return [block for block, _ in self.blocks] or [*self.keys.values(), *self.values.values()]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's [1, H, n, D] from slot ``start`` on; return all up to its end."""
        if layer not in self.keys:  # zeros: values beyond a row's length must be finite
            for tensors, new in ((self.keys, keys), (self.values, values)):
                tensors[layer] = new.new_zeros((1, new.shape[1], self.num_slots, new.shape[3]))
            self.blocks = []
        end = start + keys.shape[2]
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, start:end] = keys
        all_values[:, :, start:end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def grown(self, length: int, num_slots: int) -> RowKVCache:
        """A copy of the first ``length`` tokens, with ``num_slots`` slots."""
        new = RowKVCache(num_slots)
        for old, places in self.blocks or self._joined():
            count, heads, _, size = old.shape
            block = old.new_empty((count, heads, num_slots, size))
            block[:, :, :length] = old[:, :, :length]
            block[:, :, length:] = 0  # values beyond a row's length must be finite
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
class RowSpan:
    """Where a forward writes a row's tokens: ``count`` slots of ``row`` from ``start`` on."""

    row: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class _ByNumber:
    """The recurrent states of one layer, by their number."""

    read: Callable[[Key], Tensor | None]
    layer: int

    def __getitem__(self, number: int) -> Tensor | None:
        return self.read(Key(self.layer, number))


class _LayerStates:
    record_past = False  # as ``RaggedCache.is_recording_past``

    def __init__(self, trace: StateCheckpoint, layer: int) -> None:
        self.conv_states = _ByNumber(trace.conv, layer)
        self.recurrent_states = _ByNumber(trace.recurrent, layer)


class LayersByIndex(list[Any]):
    """``cache.layers``, whose states layers read by index before transformers 5.21.

    An empty list, since the cache has no layers of the library's own.
    """

    def __init__(self, states: States) -> None:
        super().__init__()
        self._states = states

    def __getitem__(self, layer: Any) -> Any:
        return _LayerStates(self._states.trace, layer)


class RaggedCache(Cache):  # type: ignore[misc]
    """A KV cache whose rows have separate lengths and storage, and are opened and closed singly.

    ``lengths``: valid tokens of each row, 0 if closed; no forward attends beyond them, so rollback
    lowers a number. Storage grows by blocks and is freed when its row is closed
    (``docs/caches.md``). capacity: maximum tokens of a row. states: of recurrent layers.
    """

    def __init__(
        self,
        num_rows: int = 0,
        capacity: int = UNLIMITED,
        states: States | None = None,
    ) -> None:
        self.states = states or States()
        Cache.__init__(self, layers=LayersByIndex(self.states))
        self.capacity = capacity
        self.lengths: list[int] = []
        self._storage: list[RowKVCache] = []
        self._empty = RowKVCache()  # the blocks of a row without slots, once they are known
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
        self._storage += [RowKVCache() for _ in range(missing)]
        self.states.open(row)

    def close(self, row: int) -> None:
        self.lengths[row], self._storage[row] = 0, RowKVCache()
        self.states.open(row)

    def copy(self, source: int, row: int, length: int) -> None:
        """Copy the first ``length`` (``reachable``) tokens of a row to an empty ``row``."""
        self._storage[row] = self._storage[source].grown(length, self._num_slots(length))
        self.states.copy(source, row, length)
        self.lengths[row] = length

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
        if fed and self.states.is_used:
            self.states.begin([span.row for span in spans], [span.start for span in spans], fed)

    def advance(self) -> None:
        """Count the tokens of the forward that ``place`` began."""
        for span in self._spans:
            self.lengths[span.row] = span.end

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
            storage = self._storage[span.row]
            return storage.write(layer_idx, span.start, key_states, value_states)
        views, first = [], 0
        for index, span in enumerate(self._spans):
            storage = self._storage[span.row]
            row, begin = (0, first) if self._is_packed else (index, 0)
            taken = (slice(row, row + 1), slice(None), slice(begin, begin + span.count))
            new = key_states[taken], value_states[taken]
            views.append(storage.write(layer_idx, span.start, *new))
            first += span.count
        if self._is_packed:
            self.views[layer_idx] = views
            return key_states, value_states
        return _side_by_side([k for k, _ in views]), _side_by_side([v for _, v in views])

    def storage(self, row: int) -> RowKVCache:
        return self._storage[row]

    def reachable(self, row: int, length: int) -> int:
        """The longest length up to ``length`` that a row can be cut back to, because its recurrent
        state is known; 0 = recompute all."""
        return max(0, self.states.reachable(row, length)) if self.states.is_used else length

    def crop(self, row: int, length: int) -> int:
        """Cut a row back to the longest reachable length up to ``length``, and return it."""
        found = self.reachable(row, min(length, self.lengths[row]))
        if not found:
            self.states.open(row)
        self.lengths[row] = found
        return found

    def settle(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Commit rows at ``counts`` tokens, and free states that only a longer rollback needs."""
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] = count
            if self.states.is_used:
                self.states.settle(row, count)

    def keep_path(self, row: int, base: int, path: Sequence[int]) -> None:
        """Keep one path of a tree fed at slots ``base``, ``base + 1``, ..., and drop the rest.

        path: increasing offsets from ``base``. Keys are rotated for their position, which on a path
        is the slot that they move to.
        """
        self.settle([row], [base + len(path)])
        if list(path) == list(range(len(path))):
            return
        for tensor in self._storage[row].tensors:
            index = torch.as_tensor(path, device=tensor.device) + base
            tensor[:, :, base : base + len(path)] = tensor[:, :, index]

    @property
    def num_bytes(self) -> int:
        return sum(storage.num_bytes for storage in self._storage) + self.states.num_bytes

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

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """A copy of the last inputs of a convolution, [R, C, K]."""
        return self.states.trace.conv(Key(layer_idx, state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        key, size = Key(layer_idx, state_idx), kwargs.get("conv_kernel_size")
        return self.states.trace.put_conv(key, conv_states, size)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.trace.recurrent(Key(layer_idx, state_idx))

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        return self.states.trace.put_recurrent(Key(layer_idx, state_idx), recurrent_states)

    def has_previous_state(self, *args: Any, **kwargs: Any) -> bool:
        return self.states.trace.has_previous

    def is_recording_past(self, layer_idx: int) -> bool:
        """False: ``StateCheckpoint`` stores earlier inputs, and layers get copies."""
        return False

    def _num_slots(self, num_tokens: int) -> int:
        block = max(BLOCK, num_tokens // 8)
        return min(-(-num_tokens // block) * block, self.capacity)

    def _grow(self, row: int, num_tokens: int) -> None:
        old = self._storage[row]
        old = old if old.keys else self._empty
        new = self._storage[row] = old.grown(self.lengths[row], self._num_slots(num_tokens))
        if new.blocks and not self._empty.blocks:
            self._empty = new.grown(0, 0)


def _side_by_side(views: Sequence[Tensor]) -> Tensor:
    """Stack rows of different lengths to [R, H, used, D], with zeros at the end."""
    used = max(view.shape[2] for view in views)
    _, heads, _, size = views[0].shape
    found = views[0].new_zeros((len(views), heads, used, size))
    for index, view in enumerate(views):
        found[index, :, : view.shape[2]] = view[0]
    return found


class HiddenStateHooks:
    """Captures selected hidden states of a module, numbered as in transformers: 0 = embeddings,
    i = after layer i, the last normed.

    transformers' ``output_hidden_states`` keeps the states of all layers until the forward ends:
    for a prompt of 4,000 tokens and 32 layers that takes more memory than the keys and values.

    The hooks' states are compared once with ``output_hidden_states``, which is used instead if they
    differ or the layers are not in one list. view: called in place of the module
    (``nn.model``).
    """

    def __init__(self, module: Any, view: Any, num_layers: int) -> None:
        self._module, self._view, self._layers = module, view, _layers(view, num_layers)
        self.places: tuple[int, ...] = ()

    def ask(self, places: Iterable[int]) -> None:
        self.places = tuple(sorted({*self.places, *places}))
        if self._layers is not None and not self._agrees():
            self._layers = None

    def call(self, forward: Any, **options: Any) -> tuple[Any, Mapping[int, Tensor]]:
        """The output of a forward of the module, and the hidden states [R, T, D] by place."""
        if not self.places:
            return forward(**options), {}
        if self._layers is None:
            output = forward(output_hidden_states=True, **options)
            return output, {place: output.hidden_states[place] for place in self.places}
        found: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            for place in self.places:
                hooks.callback(self._hook(self._layers, place, found).remove)
            output = forward(**options)
        return output, found

    def _hook(self, layers: Sequence[nn.Module], place: int, found: dict[int, Tensor]) -> Any:

        def before(layer: Any, args: Any, given: Any) -> None:
            found[place] = args[0] if args else given["hidden_states"]

        def after(decoder: Any, args: Any, output: Any) -> None:
            found[place] = output[0]

        if place < len(layers):
            return layers[place].register_forward_pre_hook(before, with_kwargs=True)
        return self._view.base_model.register_forward_hook(after)

    @torch.inference_mode()
    def _agrees(self) -> bool:
        ids = torch.arange(3, device=self._module.device)[None]
        # hooks on layers that a view shares would run twice: the module itself is called
        try:
            theirs = self._module(input_ids=ids, output_hidden_states=True).hidden_states
            found = self.call(self._view, input_ids=ids)[1]
            return all(torch.equal(found[place], theirs[place]) for place in self.places)
        except Exception:  # a layer with an unusual call
            return False


def _layers(module: Any, num_layers: int) -> Sequence[nn.Module] | None:
    decoder = getattr(module, "base_model", None)
    if decoder is None or decoder is module:
        return None
    lists = [own for own in decoder.modules() if isinstance(own, nn.ModuleList)]
    return next((list(own) for own in lists if len(own) == num_layers), None)


class HiddenStates:
    """Hidden states [length, D] of each tapped layer after the tokens of one text.

    Only states of verified tokens are stored, all from the target. ``length`` is one less than the
    text's, since the target has yet to process the last token. Memory: per tap a tensor that grows
    by doubling, D floats per token.
    """

    def __init__(self) -> None:
        self.length = 0
        self._stored: dict[int, Tensor] = {}

    def put(self, start: int, hidden: Mapping[int, Tensor]) -> None:
        """Append [n, D] states by tap; raises ValueError unless ``start`` is ``length``."""
        if start != self.length:
            raise ValueError(
                f"hidden states of positions 0 to {self.length - 1} are known: those of {start} "
                "do not follow"
            )
        for tap, states in hidden.items():
            end = start + len(states)
            stored = self._stored.get(tap)
            if stored is None or end > len(stored):
                grown = states.new_empty((max(64, 2 * end), states.shape[-1]))
                if stored is not None:
                    grown[:start] = stored[:start]
                stored = self._stored[tap] = grown
            stored[start:end] = states
            self.length = end

    def begin_like(self, other: HiddenStates, length: int) -> None:
        """Copy the first ``length`` positions of another text with the same prefix."""
        length = min(length, other.length)
        self._stored = {tap: states[:length].clone() for tap, states in other._stored.items()}
        self.length = length

    def get(self, taps: Sequence[int], start: int, end: int) -> Tensor:
        """[end - start, taps x D] states of these taps; raises ValueError past ``length``."""
        if end > self.length:
            raise ValueError(
                f"hidden states up to position {end - 1} are needed, and only {self.length} "
                "positions are known"
            )
        parts = [self._stored[tap][start:end] for tap in taps]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
