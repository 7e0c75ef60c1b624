"""Expected seconds and expected tokens of plans."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from draftwise.policies.state import dump
from draftwise.types import NONE, Costs, Floats, Ints, Plan

DEFAULT_DRAFT_SHARE = 0.05
"""Prior seconds of a draft step, as a share of a target forward."""

_CERTAIN = 1.0 - 1e-9  # the largest acceptance: the sum is then k + 1 to seven digits
_TINY = 1e-12  # seconds: avoids division by zero where the clock is too coarse


class PlanCosts:
    """Seconds of a round of each plan, ``T(n + 1) + k c``, by the latest costs.

    A forward longer than any measured costs as much as the longest: an overestimate would end
    drafting, and with it all learning. Before any measurement a target forward takes 1 s and a
    draft step 0.05 s. Unless catching up was measured, a drafter's forward is assumed to grow with
    its tokens as the target's does.
    target_s: by tokens. draft_s, read_s: [D] seconds of a draft step, and of catching up by one
    token. seconds: [K]. batch_s: as in ``Costs``. names: [D]. places: the plans of each drafter.
    drafters, lengths, sizes: [K] each plan's index in names, its length k, and its verified tokens
    n.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.names = sorted({plan.drafter for plan in plans})
        self.drafters: Ints = np.array([self.names.index(plan.drafter) for plan in plans])
        self.lengths: Ints = np.array([plan.length for plan in plans])
        self.sizes: Ints = np.array([plan.num_tokens for plan in plans])
        self.longest = max(int(self.lengths.max()), 1)
        self.places = [np.flatnonzero(self.drafters == row) for row in range(len(self.names))]
        self._own_lengths = [self.lengths[own] for own in self.places]
        self._taken: Costs | None = None
        self.target_s: list[float] = [1.0]
        self.batch_s: Floats | None = None
        self.take(Costs(np.zeros(0), {}))

    def take(self, costs: Costs) -> None:
        """Replace the costs; those of target forwards stay if none is measured yet."""
        if self._taken is not None and _are_equal(self._taken, costs):
            return
        self._taken = costs
        if len(costs.target_s):
            self.target_s = np.maximum(costs.target_s, _TINY).tolist()
        self.batch_s = costs.batch_s
        first, last = self.target_s[0], self.target_s[-1]
        growth = (last / first - 1.0) / max(len(self.target_s) - 1, 1)
        draft_s = [
            0.0 if name == NONE else costs.draft_s.get(name, DEFAULT_DRAFT_SHARE * first)
            for name in self.names
        ]
        read_s = [
            costs.read_s.get(name, growth * step_s)
            for name, step_s in zip(self.names, draft_s, strict=True)
        ]
        self.draft_s, self.read_s = np.array(draft_s), np.array(read_s)
        forward_s = np.array(self.target_s)[np.minimum(self.sizes, len(self.target_s) - 1)]
        self.seconds: Floats = forward_s + self.lengths * self.draft_s[self.drafters]

    def state(self) -> dict[str, Any]:
        kept = dump(self, ("target_s", "draft_s", "read_s", "batch_s"))
        return kept | {"names": list(self.names)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``; ValueError if it does not fit."""
        if state["names"] != self.names:
            raise ValueError(f"it belongs to the drafters {state['names']}, not {self.names}")
        known = [*state["target_s"], *state["draft_s"], *state["read_s"], *(state["batch_s"] or ())]
        if not np.isfinite(np.array(known, dtype=np.float64)).all():
            raise ValueError("its costs are not finite: the file is damaged")
        steps = (dict(zip(self.names, state[key], strict=True)) for key in ("draft_s", "read_s"))
        batch_s = None if state["batch_s"] is None else np.array(state["batch_s"])
        self.take(Costs(np.array(state["target_s"]), next(steps), batch_s, next(steps)))

    def expected_tokens(self, rates: Floats) -> Floats:
        """[K] ``expected_tokens`` of each plan, by the acceptance of each drafter [D]."""
        return expected_tokens(rates.take(self.drafters), self.lengths)

    def retrieved(self, tokens: Floats, row: int, ladder: Sequence[float], match: int) -> None:
        """Write ``retrieved_tokens`` of the plans of one drafter into tokens [K]."""
        found = np.array(retrieved_tokens(ladder, match, self.longest))
        tokens[self.places[row]] = found[self._own_lengths[row]]


def _are_equal(costs: Costs, others: Costs) -> bool:
    """Whether two costs are equal; False if comparing takes as long as replacing."""
    if costs is others:
        return True
    return (
        costs.batch_s is others.batch_s is None
        and costs.draft_s == others.draft_s
        and costs.read_s == others.read_s
        and len(costs.target_s) == len(others.target_s)
        and bool((costs.target_s == others.target_s).all())
    )


def expected_tokens(rates: Floats, lengths: Ints) -> Floats:
    """Expected tokens of a round, ``1 + a + .. + a^k = (1 - a^(k + 1)) / (1 - a)``.

    Source: Leviathan et al. 2023, equation 1. rates, lengths: shapes that broadcast.

    >>> expected_tokens(np.array([0.5, 0.5]), np.array([1, 2])).tolist()
    [1.5, 1.75]
    """
    alphas = np.minimum(rates, _CERTAIN)
    found: Floats = (1.0 - alphas ** (lengths + 1)) / (1.0 - alphas)
    return found


def retrieved_tokens(ladder: Sequence[float], match: int, longest: int) -> list[float]:
    """[longest + 1] expected tokens of a round of retrieval by length; 0 without a match.

    ladder: acceptance after a match of 1, 2, .. tokens. Each accepted token makes the match longer;
    a match beyond the ladder counts as its end.

    >>> retrieved_tokens([0.5, 0.5, 0.5], 1, 2)
    [1.0, 1.5, 1.75]
    """
    if match <= 0:
        return [0.0] * (longest + 1)
    first = min(match - 1, len(ladder) - longest)
    reached = accumulate(ladder[first : first + longest], operator.mul)
    return list(accumulate(reached, initial=1.0))
