"""What everything costs, measured in the running engine: no profiling beforehand."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

import numpy as np

from draftwise.types import Costs, Floats

_WINDOW = 15
_FEW = 4
_STALE_ROUNDS = 400


class _Samples:
    """The latest seconds of one kind of call, robust to the odd slow one."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._is_first = True
        self.last_round = 0

    def add(self, seconds: float, round_: int) -> None:
        """Take one measurement; the first is dropped, since it paid for setting the shape up."""
        self.last_round = round_
        if self._is_first:
            self._is_first = False
        else:
            self._seconds.append(seconds)

    def value(self) -> float | None:
        """Median, or the minimum of a few: one slow sample must not rule a length out."""
        if not self._seconds:
            return None
        few = len(self._seconds) < _FEW
        return min(self._seconds) if few else statistics.median(self._seconds)


class CostMeter:
    """Seconds of target forwards by (rows, tokens a row) and of draft steps by (drafter, rows).

    Never over-estimates on purpose (an estimate too high stops drafting, and then nothing corrects
    it): unmeasured counts take the value of measured neighbours, a count is never dearer than a
    larger one, few samples count by their minimum, and old ones are forgotten.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._target: dict[tuple[int, int], _Samples] = {}
        self._draft: dict[tuple[str, int], _Samples] = {}
        self._round = 0

    def saw_target(self, rows: int, tokens: int, seconds: float) -> None:
        """A target forward of ``tokens`` tokens in each of ``rows`` rows took ``seconds``."""
        self._round += 1
        self._target.setdefault((rows, tokens), _Samples()).add(seconds, self._round)

    def saw_draft(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """``steps`` draft steps over ``rows`` rows took ``seconds`` altogether."""
        if steps:
            samples = self._draft.setdefault((drafter, rows), _Samples())
            samples.add(seconds / steps, self._round)

    def costs(self, rows: int, max_tokens: int) -> Costs:
        """What is known at this batch size, for target forwards of 1 .. ``max_tokens`` tokens."""
        target_s = self._target_curve(rows, max_tokens)
        draft_s = {}
        for drafter, relative in self._relative.items():
            value = self._draft_value(drafter, rows)
            draft_s[drafter] = relative * float(target_s[0]) if value is None else value
        return Costs(target_s, draft_s)

    def _target_curve(self, rows: int, max_tokens: int) -> Floats:
        points = {}
        for (measured_rows, tokens), samples in self._target.items():
            is_stale = self._round - samples.last_round > _STALE_ROUNDS
            value = None if measured_rows != rows or is_stale else samples.value()
            if value is not None:
                points[tokens] = value
        if not points:
            return np.ones(max_tokens)
        known = sorted(points)
        seconds = np.minimum.accumulate([points[tokens] for tokens in reversed(known)])[::-1]
        return np.interp(np.arange(1, max_tokens + 1), known, seconds)

    def _draft_value(self, drafter: str, rows: int) -> float | None:
        samples = self._draft.get((drafter, rows))
        return None if samples is None else samples.value()
