"""Recurrent kernels of hybrid models: run token by token, and rerun after a rejection.

A recurrent layer calls a kernel of transformers with inputs per token: plain decoding the step
kernel for one token, everything else the chunk kernel. Here a short input that continues a state
goes through the step kernel, token by token, so that drafts are verified with the numerics of plain
decoding. The kernel's arguments are kept until the row moves on; rerunning the kernel alone over
the accepted tokens then gives the state after these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    with one entry per token, along the axis ``time``. state: its argument for the initial state;
    empty = it starts from zero, so only the step kernel can continue a state. final: its argument
    that requests the last state.
    """

    chunk: str
    step: str
    tokenwise: tuple[str, ...]
    time: int
    state: str
    final: str

    @property
    def starts_from_zero(self) -> bool:
        return not self.state

    def given(self, arguments: Arguments) -> list[str]:
        return [name for name in self.tokenwise if arguments.get(name) is not None]

    def cut(self, arguments: Arguments, row: int, num: int) -> dict[str, Any]:
        """The chunk kernel's arguments for one row's first tokens, batch size 1."""
        own = {n: arguments[n][row : row + 1] for n in self.given(arguments)}
        return {**arguments, **{n: value.narrow(self.time, 0, num) for n, value in own.items()}}

    def run(
        self, step: Kernel, arguments: Arguments, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Run token by token from a state; return output, as the chunk kernel's, and last state.

        seen: receives the state after each token, if that costs only a copy.
        """
        output, state = step(**{**arguments, self.state: state, self.final: True})
        return output, state


class Mamba(Family):
    """S' = exp(dt A) S + dt x B^T. The step kernel works in place and does not clamp dt.

    Mamba 1: x, dt, z [R, D, T], B and C [R, N, T], the state [R, D, N]. Mamba 2: x [R, T, H, P],
    dt [R, T, H], B and C [R, T, G, N], the state [R, H, P, N].
    """

    def run(
        self, step: Kernel, arguments: Arguments, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        state = state.clone()
        bias = _expanded(arguments.get("dt_bias", arguments.get("delta_bias")), state.shape[1:-1])
        skip = _expanded(arguments.get("D"), state.shape[1:-1])
        rates = _expanded(arguments["A"], state.shape[1:])
        is_soft = arguments.get("dt_softplus", arguments.get("delta_softplus", False))
        more = {"dt_bias": bias, "dt_softplus": is_soft}
        outputs = []
        num = arguments["hidden_states"].shape[self.time]
        for at in range(num):
            token = {name: arguments[name].select(self.time, at) for name in self.given(arguments)}
            x, dt = token["hidden_states"], _expanded(token["dt"], state.shape[:-1])
            z = token.get("z")
            outputs.append(step(state, x, dt, rates, token["B"], token["C"], skip, z=z, **more))
            if num <= STEPS:
                seen.append(state.clone())
        return torch.stack(outputs, dim=self.time), state


def _expanded(given: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Expand a tensor to this shape, along the trailing axes that it lacks."""
    if given is None:
        return None
    return given[(..., *[None] * (len(shape) - given.dim()))].expand(shape)


_STATE, _STATES = ("initial_state", "output_final_state"), ("initial_states", "return_final_states")
FAMILIES: tuple[Family, ...] = (
    Family(
        "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", TOKENWISE, 1, *_STATE
    ),
    Family("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention", TOKENWISE, 1, *_STATE),
    Mamba(
        "mamba2_chunk_scan", "mamba2_selective_state_update",
        ("hidden_states", "dt", "B", "C"), 1, *_STATES,
    ),
    Mamba(
        "mamba_selective_scan", "mamba_selective_state_update",
        ("hidden_states", "dt", "B", "C", "z"), -1, "", "return_last_state",
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
        is_short = self.arguments[family.tokenwise[0]].shape[family.time] <= STEPS
        if self.state is not None and (is_short or family.starts_from_zero):
            return family.run(self.step, self.arguments, self.state, self.seen)
        initial = {} if family.starts_from_zero else {family.state: self.state}
        output, new = self.chunk(**{**self.arguments, **initial, family.final: True})
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
    if isinstance(family, Mamba) or max(nums) > STEPS or len(starts) < len(calls):
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
