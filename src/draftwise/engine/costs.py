"""What forwards cost: the target's by the shared cost model, drafters' by their latest samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Protocol

import numpy as np

from draftwise.controller.costs import Step, StepCosts
from draftwise.types import Costs

_WINDOW = 15
_FEW = 4


class _Samples:
    """The latest seconds of one kind of call, robust to the odd slow one."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._first: float | None = None
        self._value: float | None = None

    def add(self, seconds: float) -> None:
        """Take one measurement; the first, which paid for setting the shape up, stands aside."""
        if self._first is None:
            self._first = seconds
            return
        self._seconds.append(seconds)
        is_few = len(self._seconds) < _FEW
        self._value = min(self._first, *self._seconds) if is_few else median(self._seconds)

    def value(self, default: float) -> float:
        """Median, or the minimum of a few: one slow sample must not rule a drafter out."""
        return default if self._value is None else self._value


class CostModel(Protocol):
    """What forwards and draft steps cost, from what it is told of them."""

    def record_target_step(self, rows: int, tokens: int, context: int, seconds: float) -> float:
        """A target forward over ``tokens`` tokens of ``rows`` rows took ``seconds``.

        tokens: padding included. context: tokens of all rows' texts before it. Returns the seconds
        of the same step without drafts.
        """
        ...

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """``steps`` draft steps over ``rows`` rows took ``seconds`` altogether."""
        ...

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        """Reading ``tokens`` tokens that a drafter had missed took ``seconds``."""
        ...

    def costs(self, rows: int, max_tokens: int, context: int, is_packed: bool = False) -> Costs:
        """What is known at this batch size, for target forwards of 1 .. ``max_tokens`` tokens.

        context: tokens of all rows' texts. is_packed: whether rows go end to end, so that a
        forward's seconds follow the tokens of all rows together; they are then told by their
        number, too.
        """
        ...


class MeasuredCostModel:
    """The shared cost model (``controller.StepCosts``), and seconds of a draft step by drafter.

    Draft steps are kept by batch size within a factor of two, and read from the nearest one; until
    one was measured, a drafter is believed to take its share of the parameters. Where no target
    forward was measured every one takes 1 s.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._target = StepCosts()
        probe = StepCosts()  # compiles its functions, or loads them, before the first request
        probe.observe(Step(1, 1, 1.0), 1)
        probe.seconds(1, 1, 0, 1)
        self._draft: dict[str, dict[int, _Samples]] = {name: {} for name in relative_costs}
        self._read: dict[str, _Samples] = {}

    def record_target_step(self, rows: int, tokens: int, context: int, seconds: float) -> float:
        """Teach the cost model a step; the seconds of a plain one."""
        return self._target.observe(Step(rows, tokens, seconds), context)

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """Note the seconds of a step."""
        if steps:
            samples = self._draft[drafter].setdefault(rows.bit_length(), _Samples())
            samples.add(seconds / steps)

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        """Note the seconds of a token, whatever the batch."""
        self._read.setdefault(drafter, _Samples()).add(seconds / tokens)

    def costs(self, rows: int, max_tokens: int, context: int, is_packed: bool = False) -> Costs:
        """By the cost model at this batch size and context."""
        seconds = np.ones(rows * max_tokens)
        if self._target.is_known:
            known = self._target.seconds(rows, context, 0, rows * (max_tokens - 1))
            # a forward over fewer tokens than rows does not occur
            seconds = np.concatenate([np.full(rows - 1, known[0]), known])
        target_s, size = seconds[rows - 1 :: rows], rows.bit_length()
        draft_s, plain_s = {}, float(target_s[0])
        for drafter, relative in self._relative.items():
            measured = self._draft[drafter]
            nearest = min(measured, key=lambda known: abs(known - size), default=None)
            guess = relative * plain_s
            draft_s[drafter] = guess if nearest is None else measured[nearest].value(guess)
        read_s = {name: known.value(0.0) for name, known in self._read.items()}
        batch_s = seconds if is_packed and rows > 1 else None
        return Costs(target_s, draft_s, batch_s, {n: s for n, s in read_s.items() if s})


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


LEAST_PIECE, LARGEST_PIECE = 16, 2048
"""Tokens that are read at once, at least and at most."""

_LATEST = 9

SHARE = 0.5
"""Of a round's seconds, what one reader may take between two rounds."""


class PrefillBudget:
    """How many tokens of a text may be read between two rounds of rows that write.

    As many as take half as long as a round does, by what reading took so far: with a prompt's piece
    and a drafter's in one step no row waits for more than about two rounds. State: the latest
    seconds of a round, and of a token that was read; their medians count, since a pause of the
    machine must not let a long piece through.
    """

    def __init__(self) -> None:
        self.rounds, self.tokens = deque[float](maxlen=_LATEST), deque[float](maxlen=_LATEST)

    def budget(self, is_idle: bool) -> int:
        """Tokens for one step; nothing limits them but memory where no row writes."""
        if is_idle:
            return LARGEST_PIECE
        if not self.tokens or not self.rounds:
            return LEAST_PIECE
        most = SHARE * median(self.rounds) / max(median(self.tokens), 1e-9)
        return int(min(LARGEST_PIECE, max(LEAST_PIECE, most)))

    def record(self, num_tokens: int, seconds: float) -> None:
        """So many tokens took so long; small pieces say little of large ones."""
        if num_tokens >= LEAST_PIECE // 2:
            self.tokens.append(seconds / num_tokens)
