"""Seconds that are said, not measured: with them a seed repeats every choice, on any machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from draftwise.controller.guard import Guard
from draftwise.drafters.protocol import Drafter
from draftwise.engine.costs import MeasuredCostModel
from draftwise.engine.drafting import Pool
from draftwise.nn.model import CausalModel
from draftwise.types import Costs

TOKEN_SHARE = 0.02
"""What one more token of a row adds to a target forward, as a share of a forward of one."""


class FixedCostModel:
    """A ``CostModel`` and a clock that moves by the forwards it is told of, by their price alone.

    A target forward over T tokens a row lasts ``1 + TOKEN_SHARE (T - 1)``, a draft step what the
    drafter's size lets expect. Everything else takes no time. So what is chosen follows from the
    prompt and the seed; whether it is the fastest depends on how far the prices are right.
    State: the time so far, in forwards of one token.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._now = 0.0

    def clock(self) -> float:
        """The time so far."""
        return self._now

    def record_target_step(self, rows: int, tokens: int, context: int, seconds: float) -> float:
        """A target forward happened; how long it took is no matter."""
        self._now += 1.0 + TOKEN_SHARE * (-(-tokens // rows) - 1)
        return 1.0

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """So did draft steps."""
        self._now += steps * self._relative[drafter]

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        """So did the reading of a text."""
        self._now += TOKEN_SHARE * tokens * self._relative[drafter]

    def costs(self, rows: int, max_tokens: int, context: int, is_packed: bool = False) -> Costs:
        """The prices: the same whatever happened."""
        target_s = 1.0 + TOKEN_SHARE * np.arange(max_tokens, dtype=np.float64)
        return Costs(target_s, dict(self._relative))


def pool_of(
    target: CausalModel,
    drafters: Sequence[Drafter],
    clock: Callable[[], float],
    cost_clock: Callable[[], float],
    deterministic: bool,
) -> Pool:
    """What an engine drafts with, on the clocks that are given or on one of prices."""
    prices = {drafter.name: drafter.relative_cost for drafter in drafters}
    if not deterministic:
        return Pool(target, drafters, MeasuredCostModel(prices), clock, cost_clock)
    cost_model = FixedCostModel(prices)
    # an account would carry what happened in one answer to the next
    return Pool(target, drafters, cost_model, cost_model.clock, cost_model.clock, Guard(math.inf))
