"""Recurrent layers (gated delta rules, Mamba-2, convolutions): kernels, states, rollback.

Rollback of keys and values lowers a number. A recurrent state cannot be cut, so each row keeps the
state before a forward and the arguments of the kernels, from which the state after the accepted
tokens is computed when the row continues (``docs/caches.md`` has a diagram).

A layer calls a kernel of transformers with inputs per token: plain decoding the step kernel for one
token, everything else the chunk kernel. Here a short input that continues a state goes through the
step kernel, token by token, so that drafts are verified with the numerics of plain decoding.

``nn.model`` records the kernels' calls, and ``RaggedCache`` keeps the states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

STEPS = 16
"""Maximum tokens of an input that is run step by step; the kernels' chunks are 64 or more."""
TOKENWISE = ("query", "key", "value", "g", "beta")  # arguments of the delta rules per token
Kernel = Callable[..., Any]
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """One kind of recurrence: how to call its two kernels in transformers.

    The gated delta rule and KDA: [R, T, ...] each, the state [R, H, Dk, Dv]; S' = exp(g) S + k
    (beta (v - (exp(g) S)^T k))^T with a decay for each head, of KDA for each channel.

    chunk, step: their names, for many tokens and for one. tokenwise: the chunk kernel's arguments
    with one entry per token [R, T, ...]. state: its argument for the initial state. final: its
    argument that requests the last state.
    """

    chunk: str
    step: str
    tokenwise: tuple[str, ...] = TOKENWISE
    state: str = "initial_state"
    final: str = "output_final_state"

    def cut(self, arguments: Arguments, row: int, num: int) -> dict[str, Any]:
        """The chunk kernel's arguments for one row's first tokens, batch size 1."""
        return {**arguments, **{n: arguments[n][row : row + 1, :num] for n in self.tokenwise}}

    def run(
        self, step: Kernel, arguments: Arguments, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Run token by token from a state; return output, as the chunk kernel's, and last state.

        seen: receives the state after each token, if that costs only a copy.
        """
        output, state = step(**{**arguments, self.state: state, self.final: True})
        return output, state


class Mamba2(Family):
    """S' = exp(dt A) S + dt x B^T. The step kernel works in place and does not clamp dt.

    x [R, T, H, P], dt [R, T, H], B and C [R, T, G, N], the state [R, H, P, N].
    """

    def run(
        self, step: Kernel, arguments: Arguments, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        state = state.clone()
        more = {
            "dt_bias": _expanded(arguments.get("dt_bias"), state.shape[1:-1]),
            "dt_softplus": arguments.get("dt_softplus", False),
        }
        skip = _expanded(arguments.get("D"), state.shape[1:-1])
        rates = _expanded(arguments["A"], state.shape[1:])
        outputs = []
        num = arguments["hidden_states"].shape[1]
        for at in range(num):
            x, dt, b, c = (arguments[name][:, at] for name in self.tokenwise)
            dt = _expanded(dt, state.shape[:-1])
            outputs.append(step(state, x, dt, rates, b, c, skip, z=None, **more))
            if num <= STEPS:
                seen.append(state.clone())
        return torch.stack(outputs, dim=1), state


def _expanded(given: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Expand a tensor to this shape, along the trailing axes that it lacks."""
    if given is None:
        return None
    return given[(..., *[None] * (len(shape) - given.dim()))].expand(shape)


FAMILIES: tuple[Family, ...] = (
    Family("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    Family("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
    Mamba2(
        "mamba2_chunk_scan", "mamba2_selective_state_update",
        ("hidden_states", "dt", "B", "C"), "initial_states", "return_final_states",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a chunk kernel in a forward, with its arguments. state: the initial one. seen:
    the states after the first tokens, if the step kernel returned them.
    """

    family: Family
    chunk: Kernel
    step: Kernel
    arguments: Arguments
    state: Tensor | None
    seen: list[Tensor] = field(default_factory=list)

    def run(self) -> tuple[Tensor, Tensor]:
        family = self.family
        is_short = self.arguments[family.tokenwise[0]].shape[1] <= STEPS
        if self.state is not None and is_short:
            return family.run(self.step, self.arguments, self.state, self.seen)
        given = {**self.arguments, family.state: self.state, family.final: True}
        output, new = self.chunk(**given)
        return output, new

    def after(self, row: int, num: int) -> Tensor:
        """[1, ...] the state of one row after the first ``num`` of its tokens, at least one."""
        if len(self.seen) >= num:
            return self.seen[num - 1][row : row + 1].clone()
        state = None if self.state is None else self.state[row : row + 1]
        cut = self.family.cut(self.arguments, row, num)
        return replace(self, arguments=cut, state=state, seen=[]).run()[1]


def bound_arguments(kernel: Kernel, args: tuple[Any, ...], kwargs: Arguments) -> dict[str, Any]:
    """The arguments of a call by name, including those passed by keyword."""
    named = inspect.signature(kernel).bind(*args, **kwargs).arguments
    more = named.pop("kwargs", {})
    return {**named, **more}


def states_after(
    calls: Sequence[Call], rows: Sequence[int], nums: Sequence[int]
) -> list[list[Tensor]] | None:
    """[calls][rows] states [1, ...] of these rows, each after its first ``nums`` tokens, by one run
    of the step kernel; None for other kernels, a prompt, layers that differ, or a single state.
    """
    family, step = calls[0].family, calls[0].step
    starts = [call.state for call in calls if call.state is not None]
    if isinstance(family, Mamba2) or max(nums) > STEPS or len(starts) < len(calls):
        return None
    if len(calls) * len(rows) == 1 or any(_kind(call) != _kind(calls[0]) for call in calls[1:]):
        return None
    every = list(rows) == list(range(len(starts[0])))
    index = slice(None) if every else torch.tensor(rows, device=starts[0].device)
    stacked = _stacked(calls, index, nums)
    made: Tensor = family.run(step, stacked, torch.cat([state[index] for state in starts]), [])[1]
    # cloned, so that no row keeps the others' memory alive
    each = [made[i : i + 1].clone() if len(rows) > 1 else made[i : i + 1] for i in range(len(made))]
    return [each[first : first + len(rows)] for first in range(0, len(each), len(rows))]


def _stacked(calls: Sequence[Call], index: Any, nums: Sequence[int]) -> dict[str, Any]:
    """The arguments of all calls as one; after ``nums`` tokens g = beta = 0, a no-op."""
    longest = max(nums)
    stacked = {n: torch.cat([c.arguments[n][:, :longest][index] for c in calls]) for n in TOKENWISE}
    if min(nums) < longest:
        like = stacked["beta"]
        beyond = torch.arange(longest)[None] >= torch.tensor(nums)[:, None]
        beyond = beyond.repeat(len(calls), 1).to(like.device)
        for name in ("g", "beta"):
            shape = (*beyond.shape, *[1] * (stacked[name].dim() - 2))
            stacked[name] = stacked[name].masked_fill(beyond.view(shape), 0)
    return {**calls[0].arguments, **stacked}


def _kind(call: Call) -> list[Any]:
    """The shapes and weights that calls must share to run as one."""
    sizes = [call.arguments[name].shape for name in TOKENWISE]
    flags = {n: v for n, v in call.arguments.items() if n not in (*TOKENWISE, "initial_state")}
    constants = {n: id(v) if isinstance(v, Tensor) else v for n, v in flags.items()}
    return [call.step, sizes, constants]


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
        self.layer = key.layer
        if key not in self._handed:
            found = _joined([state.conv.get(key) for state in self.before])
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
        found = _joined([state.recurrent.get(key) for state in self.before])
        if found is not None:
            self._states[key] = found
        return found

    def put_recurrent(self, key: Key, states: Tensor) -> Tensor:
        """Set the states [R, ...] after the last token that was fed."""
        self._states[key] = states
        if key.layer not in self._calls and self.width > 1:
            self.rewinds = False
        return states

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


def _joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Copy tensors [1, ...] to [R, ...], zeros for None; None if all are None."""
    like = next((tensor for tensor in tensors if tensor is not None), None)
    if like is None:
        return None
    return torch.cat([torch.zeros_like(like) if t is None else t for t in tensors])
