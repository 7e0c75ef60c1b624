"""Recurrent states by row, which can be rolled back to any token of a draft.

Rollback of keys and values lowers a number. A recurrent state cannot be cut, so each row keeps the
state before a forward and the arguments of the kernels (``nn.hybrid.kernels``), from which the
state after the accepted tokens is recomputed when the row continues. ``docs/hybrid.md`` has a
diagram.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from draftwise.nn.hybrid.kernels import STEPS, Call, states_after

MOST_STEPS = 24
"""Maximum forwards since the last ``settle`` that a row can be rolled back by."""


class Key(NamedTuple):
    layer: int
    number: int = 0


@dataclass(slots=True)
class State:
    """The state of one row. conv: [1, C, K] last inputs; recurrent: [1, ...]."""

    conv: dict[Key, Tensor] = field(default_factory=dict)
    recurrent: dict[Key, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return sum(t.nbytes for t in (*self.conv.values(), *self.recurrent.values()))


class StateCheckpoint:
    """The initial states of a forward over R rows, its kernel calls, and its final states.

    Unsupported kernels yield only the final state: ``rewinds`` is then False.
    """

    def __init__(self, before: Sequence[State], width: int) -> None:
        self.before, self.width = before, width
        self.layer = 0  # the layer that is running
        self.rewinds = True
        self._handed: dict[Key, Tensor] = {}  # conv states read, which the step
        self._inputs: dict[Key, tuple[Tensor, int]] = {}  # kernel writes to. [R, C, K + T] and K
        self._states: dict[Key, Tensor] = {}  # states read, or written back
        self._calls: dict[int, list[Call]] = {}
        self._again: dict[tuple[int, int, int], Tensor] = {}  # by layer, row, number of tokens

    @property
    def has_previous(self) -> bool:
        return any(state.conv or state.recurrent for state in self.before)

    def conv(self, key: Key) -> Tensor | None:
        """[R, C, K] the last inputs of all rows, zeros for rows without; None = no row has any."""
        if key not in self._handed:
            found = _stacked([state.conv.get(key) for state in self.before])
            if found is not None:
                self._handed[key] = found
        return self._handed.get(key)

    def put_conv(self, key: Key, inputs: Tensor, size: int | None) -> Tensor:
        """Add inputs [R, C, T]; return [R, C, K + T], including those before them."""
        size = size or inputs.shape[-1]
        before = self.conv(key)
        if before is None:
            before = inputs.new_zeros((*inputs.shape[:-1], size))
        if inputs.shape[-1] != self.width:  # a layer that passes only its last inputs
            self.rewinds = False
        full = torch.cat([before, inputs], dim=-1)
        self._inputs[key] = (full, size)
        return full

    def recurrent(self, key: Key) -> Tensor | None:
        """[R, ...] the states of all rows, zeros for rows without one; None = no row has one."""
        self.layer = key.layer
        found = _stacked([state.recurrent.get(key) for state in self.before])
        if found is not None:
            self._states[key] = found
        return found

    def put_recurrent(self, key: Key, states: Tensor) -> Tensor:
        """Set the states [R, ...] after the last token that was fed."""
        self._states[key] = states
        if key.layer not in self._calls and self.width > 1:
            self.rewinds = False
        return states

    def heads_state(self) -> Tensor | None:
        """The initial state of the next call, for kernels that take none (Mamba 1)."""
        found = self._states.get(Key(self.layer)) if self.has_previous else None
        head = len(self._calls.get(self.layer, ()))
        return found if found is None or found.dim() == 3 else found[:, head]  # Zamba's heads

    def note(self, call: Call) -> None:
        self._calls.setdefault(self.layer, []).append(call)

    def state(self, row: int, num: int) -> State | None:
        """The state of a row after its first ``num`` tokens, 0 to T; None if it is not known."""
        if num == 0:
            return self.before[row]
        if num < self.width and not self.rewinds:
            return None
        this = slice(row, row + 1)
        conv = {key: handed[this].clone() for key, handed in self._handed.items()}
        for key, (full, size) in self._inputs.items():
            end = full.shape[-1] - self.width + num if self.rewinds else full.shape[-1]
            conv[key] = full[this, ..., end - size : end].clone()
        states = {key: self._recurrent(key, row, num) for key in self._states}
        return State(conv, states)

    def _recurrent(self, key: Key, row: int, num: int) -> Tensor:
        if num == self.width:
            return self._states[key][row : row + 1].clone()
        if (key.layer, row, num) in self._again:
            return self._again[key.layer, row, num]
        heads = [call.after(row, num) for call in self._calls[key.layer]]
        return heads[0] if len(heads) == 1 else torch.stack(heads, dim=1)

    def run_again(self, rows: Sequence[int], nums: Sequence[int]) -> None:
        """Compute the states of these rows after ``nums`` of their tokens, in one batch."""
        cut = [(row, num) for row, num in zip(rows, nums, strict=True) if 0 < num < self.width]
        known = [layer for layer, calls in self._calls.items() if len(calls) == 1]
        if not (cut and known and self.rewinds):
            return
        made = states_after([self._calls[layer][0] for layer in known], *zip(*cut, strict=True))
        for layer, states in zip(known, made or (), strict=False):
            self._again |= {(layer, *at): new for at, new in zip(cut, states, strict=True)}


@dataclass(slots=True)
class _Step:
    """A row in a forward: its tokens from ``start`` on. end: last state, if only that is kept."""

    start: int
    tokens: Sequence[int]
    trace: StateCheckpoint | None
    row: int
    before: State
    end: State | None = None

    def state(self, position: int) -> State | None:
        if position == self.start:
            return self.before
        if self.trace is not None:
            return self.trace.state(self.row, position - self.start)
        return self.end if position == self.start + len(self.tokens) else None


class States:
    """The recurrent states of all rows of a cache, with rollback."""

    def __init__(self, is_used: bool = False) -> None:
        self._base: dict[int, tuple[int, State]] = {}  # a position and its state
        self._steps: dict[int, list[_Step]] = {}
        self.trace = StateCheckpoint((), 0)
        self.is_used = is_used  # whether the model has any

    def open(self, row: int) -> None:
        self._base[row], self._steps[row] = (0, State()), []

    def copy(self, source: int, row: int, length: int) -> None:
        if self.is_used and length:
            self._base[row], self._steps[row] = (length, self._at(source, length)), []

    def reachable(self, row: int, length: int) -> int:
        """The furthest position up to ``length`` whose state is known; -1 = none."""
        if not self.is_used:
            return length
        return next(self._known(row, length), -1)

    def missing(self, row: int, length: int) -> list[int]:
        """The tokens from the ``reachable`` position to ``length``, which must be fed again."""
        first = self.reachable(row, length)
        read = {s.start + at: token for s in self._steps[row] for at, token in enumerate(s.tokens)}
        return [read[at] for at in range(first, length)]

    def begin(
        self, rows: Sequence[int], starts: Sequence[int], fed: Sequence[Sequence[int]]
    ) -> None:
        """Prepare a forward over the tokens ``fed`` of these rows, from ``starts`` on."""
        rolled_back = [
            (step.row, start - step.start)
            for row, start in zip(rows, starts, strict=True)
            for step in self._steps[row][-1:]
            if step.trace is self.trace and start > step.start
        ]
        if rolled_back:
            self.trace.run_again(*zip(*rolled_back, strict=True))
        before = [self._at(row, start) for row, start in zip(rows, starts, strict=True)]
        self.trace = StateCheckpoint(before, max(map(len, fed)))
        for index, (row, start, tokens) in enumerate(zip(rows, starts, fed, strict=True)):
            steps = [step for step in self._steps[row] if step.start < start]
            if steps:
                steps[-1].tokens = steps[-1].tokens[: start - steps[-1].start]
            step = _Step(start, list(tokens), self.trace, index, before[index])
            self._steps[row] = [*steps, step]
            self._forget(row, len(self._steps[row]) - MOST_STEPS)

    def finish(self) -> None:
        """End a forward; a wide one keeps only its last state, to save memory."""
        if self.trace.width <= 2 * STEPS:
            return
        fed = [steps[-1] for steps in self._steps.values() if steps]
        for step in [step for step in fed if step.trace is self.trace]:
            step.end, step.trace = step.state(step.start + len(step.tokens)), None
        self.trace = StateCheckpoint((), 0)

    def settle(self, row: int, length: int) -> None:
        """Drop what only a rollback below this length needs."""
        first = self.reachable(row, length)
        self._forget(row, sum(step.start <= first for step in self._steps[row]) - 1)

    @property
    def num_bytes(self) -> int:
        return sum(state.num_bytes for _, state in self._base.values())

    def _forget(self, row: int, num: int) -> None:
        if num > 0:
            self._steps[row] = self._steps[row][num:]
            first = self._steps[row][0]
            self._base[row] = (first.start, first.before)

    def _known(self, row: int, length: int) -> Iterator[int]:
        """Positions up to ``length`` whose states are known, from the last to the first."""
        for step in reversed(self._steps[row]):
            end = step.start + len(step.tokens)
            if step.trace is not None and step.trace.rewinds and step.start <= length:
                yield min(end, length)
            elif end <= length:
                yield end
            if step.start <= length:
                yield step.start
        if self._base[row][0] <= length:
            yield self._base[row][0]

    def _at(self, row: int, position: int) -> State:
        """The state of a row at this position; raises ValueError if it is not known."""
        for step in reversed(self._steps[row]):
            is_near = step.start <= position <= step.start + len(step.tokens)
            if is_near and (found := step.state(position)) is not None:
                return found
        if self._base[row][0] != position:
            raise ValueError(f"the state of row {row} after {position} tokens is not known")
        return self._base[row][1]


def _stacked(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Copy tensors [1, ...] to [R, ...], zeros for None; None if all are None."""
    like = next((tensor for tensor in tensors if tensor is not None), None)
    if like is None:
        return None
    return torch.cat([torch.zeros_like(like) if t is None else t for t in tensors])


class LibraryStates:
    """The interface of transformers' ``Cache`` for recurrent layers."""

    states: States

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

    get_linear_cache = get_recurrent_state

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        self.update_recurrent_state(linear_cache, layer_idx)

    def has_previous_state(self, *args: Any, **kwargs: Any) -> bool:
        return self.states.trace.has_previous

    def is_recording_past(self, layer_idx: int) -> bool:
        """False: ``StateCheckpoint`` stores earlier inputs, and layers get copies."""
        return False
