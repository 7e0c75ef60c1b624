"""A cost model with fixed, simulated times, for deterministic runs on any machine."""

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
"""Cost of each further token of a row, as a share of a target forward over one token."""


class FixedCostModel:
    """A ``CostModel``, and a clock that advances by the fixed cost of each recorded forward.

    A target forward over T tokens per row costs ``1 + TOKEN_SHARE (T - 1)``, a draft step the
    drafter's relative size, everything else nothing. All choices therefore follow from the prompt
    and the seed. State: the simulated time, in forwards over one token.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._now = 0.0

    def clock(self) -> float:
        """The simulated time."""
        return self._now

    def record_target_step(self, rows: int, tokens: int, context: int, seconds: float) -> float:
        """Advance the clock by a target forward; ``seconds`` is ignored."""
        self._now += 1.0 + TOKEN_SHARE * (-(-tokens // rows) - 1)
        return 1.0

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """Advance the clock by draft steps."""
        self._now += steps * self._relative[drafter]

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        """Advance the clock by catching up."""
        self._now += TOKEN_SHARE * tokens * self._relative[drafter]

    def costs(self, rows: int, max_tokens: int, context: int, is_packed: bool = False) -> Costs:
        """The fixed costs."""
        target_s = 1.0 + TOKEN_SHARE * np.arange(max_tokens, dtype=np.float64)
        return Costs(target_s, dict(self._relative))


def pool_of(
    target: CausalModel,
    drafters: Sequence[Drafter],
    clock: Callable[[], float],
    cost_clock: Callable[[], float],
    deterministic: bool,
) -> Pool:
    """The pool of an engine, with measured costs or, if deterministic, with fixed ones."""
    prices = {drafter.name: drafter.relative_cost for drafter in drafters}
    if not deterministic:
        return Pool(target, drafters, MeasuredCostModel(prices), clock, cost_clock)
    cost_model = FixedCostModel(prices)
    # a finite account would make an answer depend on earlier ones
    return Pool(target, drafters, cost_model, cost_model.clock, cost_model.clock, Guard(math.inf))
