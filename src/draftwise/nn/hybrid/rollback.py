"""After a rejection: the kernels of several rows and layers, run again as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.hybrid.kernels import STEPS, TOKENWISE, Call, Delta


def all_after(
    calls: Sequence[Call], rows: Sequence[int], nums: Sequence[int]
) -> list[list[Tensor]] | None:
    """[calls][rows] states [1, ...] of these rows, each after its first ``nums`` tokens.

    One run of the kernel for one token, which on small states costs hardly more than for one layer
    of one row. None where that cannot be, or saves nothing: other kernels, a prompt, layers that
    differ, a single state.
    """
    family, step = calls[0].family, calls[0].step
    starts = [call.state for call in calls if call.state is not None]
    if not isinstance(family, Delta) or max(nums) > STEPS or len(starts) < len(calls):
        return None
    if len(calls) * len(rows) == 1 or any(_kind(call) != _kind(calls[0]) for call in calls[1:]):
        return None
    every = list(rows) == list(range(len(starts[0])))
    index = slice(None) if every else torch.tensor(rows, device=starts[0].device)
    told = _stacked(calls, index, nums)
    made: Tensor = family.run(step, told, torch.cat([state[index] for state in starts]), [])[1]
    # of several rows each has its own, so that none keeps the others'
    each = [made[i : i + 1].clone() if len(rows) > 1 else made[i : i + 1] for i in range(len(made))]
    return [each[first : first + len(rows)] for first in range(0, len(each), len(rows))]


def _stacked(calls: Sequence[Call], index: Any, nums: Sequence[int]) -> dict[str, Any]:
    """What one call is given for these rows of all; of each row only the first tokens count.

    The others neither let the state decay nor add to it: g = 0 and beta = 0.
    """
    longest = max(nums)
    told = {n: torch.cat([c.given[n][:, :longest][index] for c in calls]) for n in TOKENWISE}
    if min(nums) < longest:
        like = told["beta"]
        behind = torch.arange(longest)[None] >= torch.tensor(nums)[:, None]
        behind = behind.repeat(len(calls), 1).to(like.device)
        for name in ("g", "beta"):
            shape = (*behind.shape, *[1] * (told[name].dim() - 2))
            told[name] = told[name].masked_fill(behind.view(shape), 0)
    return {**calls[0].given, **told}


def _kind(call: Call) -> list[Any]:
    """What calls that go as one have in common; weights of a layer are themselves only."""
    sizes = [call.given[name].shape for name in TOKENWISE]
    flags = {n: v for n, v in call.given.items() if n not in (*TOKENWISE, "initial_state")}
    told = {n: id(v) if isinstance(v, Tensor) else v for n, v in flags.items()}
    return [call.step, sizes, told]
