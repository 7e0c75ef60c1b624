"""Costs of the forwards of draftwise's own engine, measured or fixed."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from statistics import median

import numpy as np

from draftwise.compiled import warm_up
from draftwise.controller.costs import Step, StepCosts
from draftwise.types import Costs

PLAIN_ROUNDS = 2
"""Plain rounds measured before any draft at each batch size (in powers of two), and again once the
context exceeds twice the longest measured one by FAR_TOKENS."""
FAR_TOKENS = 512


class _Samples:
    """Recent durations of one kind of call, in seconds: their median, or the minimum while there
    are few, so that one slow call does not end drafting.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=15)
        self._first: float | None = None
        self._value: float | None = None

    def add(self, seconds: float) -> None:
        if self._first is None:  # kept apart, because it includes one-time set-up
            self._first = seconds
            return
        self._seconds.append(seconds)
        is_few = len(self._seconds) < 4
        self._value = min(self._first, *self._seconds) if is_few else median(self._seconds)

    def value(self, default: float) -> float:
        return default if self._value is None else self._value


class MeasuredCostModel(StepCosts):
    """Costs in seconds: of target forwards as ``StepCosts``, and of draft steps by drafter.

    Draft steps are sampled by batch size, in powers of two; the nearest size with samples is used.
    Before the first sample a draft step costs ``relative_cost`` target forwards, and a target
    forward 1 s.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        super().__init__()
        self._relative = dict(relative_costs)
        warm_up()
        self._draft = {name: defaultdict[int, _Samples](_Samples) for name in relative_costs}
        self._read = defaultdict[str, _Samples](_Samples)
        self._plain = Counter[int]()
        self._longest = self._num_far = 0

    def observe(self, step: Step, num_context: int) -> float:
        if step.num_tokens <= step.num_requests:
            self._plain[step.num_requests.bit_length()] += 1
            if self._is_far(num_context):
                self._num_far = (self._num_far + 1) % PLAIN_ROUNDS
                self._longest = self._longest if self._num_far else num_context
        return super().observe(step, num_context)

    def is_unmeasured(self, rows: int, context: int) -> bool:
        """Whether the cost of a plain round would be extrapolated, far from the measured ones."""
        return self._plain[rows.bit_length()] < PLAIN_ROUNDS or self._is_far(context)

    def _is_far(self, context: int) -> bool:
        return context > 2 * self._longest + FAR_TOKENS

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        if steps:
            self._draft[drafter][rows.bit_length()].add(seconds / steps)

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        self._read[drafter].add(seconds / tokens)

    def costs(self, rows: int, max_tokens: int, context: int) -> Costs:
        """Costs at this batch size, for target forwards over 1 .. ``max_tokens`` tokens per row.

        context: tokens of all sequences.
        """
        target_s, size = np.ones(max_tokens), rows.bit_length()
        if self.is_known:
            target_s = self.seconds(rows, context, 0, rows * (max_tokens - 1))[::rows].copy()
            # far beyond the largest measured forward, a token costs at least a plain one
            far = 2 * max(self.largest, rows) // rows
            plain_rate_s = target_s[0] * np.arange(far + 1, max_tokens + 1)
            target_s[far:] = np.maximum(target_s[far:], plain_rate_s)
        draft_s, plain_s = {}, float(target_s[0])
        for drafter, relative in self._relative.items():
            draft_s[drafter] = guess = relative * plain_s
            if measured := self._draft[drafter]:
                nearest = min(measured, key=lambda known: abs(known - size))
                draft_s[drafter] = measured[nearest].value(guess)
        read_s = {name: s for name, own in self._read.items() if (s := own.value(0.0))}
        return Costs(target_s, draft_s, read_s)


TOKEN_SHARE = 0.02  # cost of each additional token of a row, in one-token target forwards


class FixedCostModel:
    """A deterministic ``MeasuredCostModel``, whose clock advances by a fixed cost per forward.

    A target forward over T tokens per row costs ``1 + TOKEN_SHARE (T - 1)``, a draft step the
    drafter's ``relative_cost``. All decisions therefore depend only on the prompt and the seed.
    counted_s, proven_s, confirmed: as of ``MeasuredCostModel``.
    """

    counted_s, proven_s, confirmed = 0.0, 1.0, None  # the clock has the seconds of forwards

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._now = 0.0

    def clock(self) -> float:
        return self._now

    def is_unmeasured(self, rows: int, context: int) -> bool:
        return False

    def observe(self, step: Step, num_context: int) -> float:
        self._now += 1.0 + TOKEN_SHARE * (-(-step.num_tokens // step.num_requests) - 1)
        return 1.0

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        self._now += steps * self._relative[drafter]

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        self._now += TOKEN_SHARE * tokens * self._relative[drafter]

    def costs(self, rows: int, max_tokens: int, context: int) -> Costs:
        target_s = 1.0 + TOKEN_SHARE * np.arange(max_tokens, dtype=np.float64)
        return Costs(target_s, dict(self._relative))


CostModel = MeasuredCostModel | FixedCostModel
