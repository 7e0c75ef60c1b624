"""What everything costs, measured in the running engine: no profiling beforehand."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from draftwise.types import Costs

_WINDOW = 15
_FEW = 4
_STALE_ROUNDS = 400


class _Samples:
    """The latest seconds of one kind of call, robust to the odd slow one."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._first: float | None = None
        self.last_round = 0

    def add(self, seconds: float, round_: int) -> None:
        """Take one measurement; the first, which paid for setting the shape up, stands aside."""
        self.last_round = round_
        if self._first is None:
            self._first = seconds
        else:
            self._seconds.append(seconds)

    @property
    def has_value(self) -> bool:
        """Whether anything but a first call was measured."""
        return bool(self._seconds)

    def value(self) -> float:
        """Median, or the minimum of a few: one slow sample must not rule a length out."""
        if self._first is not None and len(self._seconds) < _FEW:
            return min(self._first, *self._seconds)
        return statistics.median(self._seconds)


class CostMeter:
    """Seconds of target forwards by tokens a row, and of draft steps by drafter, per batch size.

    Never over-estimates on purpose (what is thought too dear is not played, and then nothing
    corrects it): a count is never dearer than a larger one, what lies beyond the largest that was
    measured costs what that did, fewer than the smallest cost proportionally less (so plain
    decoding is soon measured), few samples count by their minimum, and old ones are forgotten.
    Batch sizes share their samples within a factor of two; one never seen borrows from the nearest.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._target: dict[int, dict[int, _Samples]] = {}
        self._draft: dict[str, dict[int, _Samples]] = {name: {} for name in relative_costs}
        self._round = 0

    def saw_target(self, rows: int, tokens: int, seconds: float) -> None:
        """A target forward of ``tokens`` tokens in each of ``rows`` rows took ``seconds``."""
        self._round += 1
        by_tokens = self._target.setdefault(rows.bit_length(), {})
        by_tokens.setdefault(tokens, _Samples()).add(seconds, self._round)

    def saw_draft(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """``steps`` draft steps over ``rows`` rows took ``seconds`` altogether."""
        if steps:
            samples = self._draft[drafter].setdefault(rows.bit_length(), _Samples())
            samples.add(seconds / steps, self._round)

    def costs(self, rows: int, max_tokens: int) -> Costs:
        """What is known at this batch size, for target forwards of 1 .. ``max_tokens`` tokens."""
        size = rows.bit_length()
        curves = {key: curve for key in self._target if (curve := self._curve(key))}
        target_s = np.ones(max_tokens)
        if curves:
            points = curves[_nearest(curves, size)]
            fewest, seconds = next(iter(points.items()))
            points = {1: seconds / fewest} | points
            target_s = np.interp(np.arange(1, max_tokens + 1), list(points), list(points.values()))
        draft_s = {}
        for drafter, relative in self._relative.items():
            measured = {key: s.value() for key, s in self._draft[drafter].items() if s.has_value}
            value = measured[_nearest(measured, size)] if measured else relative * target_s[0]
            draft_s[drafter] = float(value)
        return Costs(target_s, draft_s)

    def _curve(self, size: int) -> dict[int, float]:
        """Seconds by tokens a row, ascending, each at most that of any larger count."""
        cheapest, curve = float("inf"), {}
        for tokens, samples in sorted(self._target[size].items(), reverse=True):
            if samples.has_value and self._round - samples.last_round <= _STALE_ROUNDS:
                cheapest = min(cheapest, samples.value())
                curve[tokens] = cheapest
        return dict(reversed(curve.items()))


def _nearest(sizes: Iterable[int], size: int) -> int:
    return min(sizes, key=lambda known: abs(known - size))
