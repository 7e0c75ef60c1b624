"""The recurrences inside hybrid models: run step by step, and run again after a rejection.

A layer with a running state calls one of the library's kernels with what it computed for each
token. Plain decoding uses that for one token, everything else the one for chunks. A short feed from
a state goes through the former here, token by token, so that a draft is judged by the numbers
that plain decoding has. What a kernel was given is kept until the row moves on: the state after any
of its tokens is that kernel run again over the tokens kept, without the model around it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

STEPS = 16
"""Tokens up to which a feed goes step by step; chunks of the library's kernels hold 64 and more."""

TOKENWISE = ("query", "key", "value", "g", "beta")
"""What the delta rules are given of each token."""

Kernel = Callable[..., Any]
Given = Mapping[str, Any]


class Family(Protocol):
    """One kind of recurrence: how the library's two kernels are called for it."""

    @property
    def chunk(self) -> str:
        """The name of the kernel for many tokens."""
        ...

    @property
    def step(self) -> str:
        """The name of the kernel for one."""
        ...

    @property
    def untold(self) -> bool:
        """Whether the chunk kernel cannot be told a state."""
        ...

    def num_tokens(self, given: Given) -> int:
        """Tokens in what the chunk kernel was given."""
        ...

    def initial(self, given: Given) -> Tensor | None:
        """The state it starts from, where it is told."""
        ...

    def cut(self, given: Given, row: int, num: int) -> dict[str, Any]:
        """The same for one row's first tokens, batch size 1."""
        ...

    def run(
        self, step: Kernel, given: Given, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Output, as the chunk kernel gives it, and state, token by token from a state.

        seen: told the state after each token, where it costs nothing but a copy.
        """
        ...

    def run_chunk(self, chunk: Kernel, given: Given, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output and state by the chunk kernel."""
        ...


@dataclass(frozen=True, slots=True)
class Delta:
    """Gated delta rule and KDA: [R, T, ...] each, the state [R, H, Dk, Dv].

    S' = exp(g) S + k (beta (v - (exp(g) S)^T k))^T: a decay for each head, of KDA for each channel.
    """

    chunk: str
    step: str
    untold: bool = False

    def num_tokens(self, given: Given) -> int:
        """Of [R, T, H, D] keys."""
        return int(given["key"].shape[1])

    def initial(self, given: Given) -> Tensor | None:
        """An argument of the kernel."""
        found: Tensor | None = given.get("initial_state")
        return found

    def cut(self, given: Given, row: int, num: int) -> dict[str, Any]:
        """Time is the second axis."""
        told = {n: given[n][row : row + 1, :num] for n in TOKENWISE}
        return {**given, **told}

    def run(
        self, step: Kernel, given: Given, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The step kernel takes any number of tokens."""
        output, state = step(**{**given, "initial_state": state, "output_final_state": True})
        return output, state

    def run_chunk(self, chunk: Kernel, given: Given, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """It takes a state, or none."""
        output, new = chunk(**{**given, "initial_state": state, "output_final_state": True})
        return output, new


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba 2: x [R, T, H, P], dt [R, T, H], B and C [R, T, G, N], the state [R, H, P, N].

    S' = exp(dt A) S + dt x B^T. The step kernel works in place and knows no limits for dt.
    """

    chunk: str = "mamba2_chunk_scan"
    step: str = "mamba2_selective_state_update"
    untold: bool = False

    def num_tokens(self, given: Given) -> int:
        """Of [R, T, H, P] inputs."""
        return int(given["hidden_states"].shape[1])

    def initial(self, given: Given) -> Tensor | None:
        """An argument of the kernel."""
        found: Tensor | None = given.get("initial_states")
        return found

    def cut(self, given: Given, row: int, num: int) -> dict[str, Any]:
        """Time is the second axis."""
        told = {n: given[n][row : row + 1, :num] for n in ("hidden_states", "dt", "B", "C")}
        return {**given, **told}

    def run(
        self, step: Kernel, given: Given, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As ``Mamba2Mixer.forward`` calls it for one token."""
        inputs, state = given["hidden_states"], state.clone()
        heads, size, states = state.shape[1:]
        rates = given["A"][:, None, None].expand(heads, size, states)
        skip, bias = (
            None if given.get(name) is None else given[name][:, None].expand(heads, size)
            for name in ("D", "dt_bias")
        )
        outputs = []
        for at in range(inputs.shape[1]):
            output = step(
                state,
                inputs[:, at],
                given["dt"][:, at, :, None].expand(-1, heads, size),
                rates,
                given["B"][:, at],
                given["C"][:, at],
                skip,
                z=None,
                dt_bias=bias,
                dt_softplus=given.get("dt_softplus", False),
            )
            outputs.append(output)
            seen.append(state.clone())
        return torch.stack(outputs, dim=1), state

    def run_chunk(self, chunk: Kernel, given: Given, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """It takes a state, or none."""
        output, new = chunk(**{**given, "initial_states": state, "return_final_states": True})
        return output, new


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Mamba 1: x, dt, z [R, D, T], B and C [R, N, T], the state [R, D, N].

    The chunk kernel takes no state: from one on, only the step kernel is right.
    """

    chunk: str = "mamba_selective_scan"
    step: str = "mamba_selective_state_update"
    untold: bool = True

    def num_tokens(self, given: Given) -> int:
        """Of [R, D, T] inputs."""
        return int(given["hidden_states"].shape[-1])

    def initial(self, given: Given) -> Tensor | None:
        """Nothing that the kernel is told."""
        return None

    def cut(self, given: Given, row: int, num: int) -> dict[str, Any]:
        """Time is the last axis."""
        names = [n for n in ("hidden_states", "dt", "B", "C", "z") if given.get(n) is not None]
        return {**given, **{n: given[n][row : row + 1, ..., :num] for n in names}}

    def run(
        self, step: Kernel, given: Given, state: Tensor, seen: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """As ``MambaMixer.forward`` calls it for one token."""
        inputs, gate, state = given["hidden_states"], given.get("z"), state.clone()
        outputs = []
        for at in range(inputs.shape[-1]):
            output = step(
                state,
                inputs[..., at],
                given["dt"][..., at],
                given["A"],
                given["B"][..., at],
                given["C"][..., at],
                given.get("D"),
                z=None if gate is None else gate[..., at],
                dt_bias=given.get("delta_bias"),
                dt_softplus=given.get("delta_softplus", False),
            )
            outputs.append(output)
            if inputs.shape[-1] <= STEPS:
                seen.append(state.clone())
        return torch.stack(outputs, dim=-1), state

    def run_chunk(self, chunk: Kernel, given: Given, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """From zero."""
        assert state is None, "the kernel starts from zero"
        output, new = chunk(**{**given, "return_last_state": True})
        return output, new


FAMILIES: tuple[Family, ...] = (
    Delta("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    Delta("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
    Mamba2(),
    Mamba1(),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a chunk kernel in a forward, with all it was given; state: where it started.

    seen: the states after the first tokens, as far as the kernel for one token left them.
    """

    family: Family
    chunk: Kernel
    step: Kernel
    given: Given
    state: Tensor | None
    seen: list[Tensor] = field(default_factory=list)

    def run(self) -> tuple[Tensor, Tensor]:
        """Output and state, by whichever kernel is right."""
        return self._run(self.given, self.state, self.seen)

    def after(self, row: int, num: int) -> Tensor:
        """[1, ...] the state of one row after the first ``num`` of its tokens, at least one."""
        if len(self.seen) >= num:
            return self.seen[num - 1][row : row + 1].clone()
        state = None if self.state is None else self.state[row : row + 1]
        return self._run(self.family.cut(self.given, row, num), state, [])[1]

    def _run(self, given: Given, state: Tensor | None, seen: list[Tensor]) -> tuple[Tensor, Tensor]:
        is_short = self.family.num_tokens(given) <= STEPS
        if state is not None and (is_short or self.family.untold):
            return self.family.run(self.step, given, state, seen)
        return self.family.run_chunk(self.chunk, given, state)


def given(kernel: Kernel, args: tuple[Any, ...], kwargs: Given) -> dict[str, Any]:
    """The arguments of a call by name, those a kernel takes as they come included."""
    bound = inspect.signature(kernel).bind(*args, **kwargs)
    told = dict(bound.arguments)
    more = told.pop("kwargs", {})
    return {**told, **more}
