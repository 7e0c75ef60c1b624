"""What everything costs, measured in the running engine: no profiling beforehand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Protocol

import numpy as np

from draftwise.types import Costs, Floats

_WINDOW = 15
_FEW = 4
_STALE_ROUNDS = 400
_DOUBT = 0.8
"""Of what other batch sizes say of plain decoding, where it was not measured at this one."""

Curve = dict[int, tuple[float, float]]
"""By tokens a row: seconds, and the rows that they were measured with, on average."""

Plane = Callable[[float, Floats], Floats]
"""Seconds of a forward over so many rows, each of so many tokens."""


class _Samples:
    """The latest seconds of one kind of call, robust to the odd slow one."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._first: float | None = None
        self._value: float | None = None
        self.last_round, self.rows = 0, 0.0

    def add(self, seconds: float, round_: int, rows: int) -> None:
        """Take one measurement; the first, which paid for setting the shape up, stands aside."""
        self.last_round, self._value = round_, None
        self.rows += (rows - self.rows) / min(len(self._seconds) + 1, _WINDOW)
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
        if self._value is None:
            if self._first is not None and len(self._seconds) < _FEW:
                self._value = min(self._first, *self._seconds)
            else:
                self._value = median(self._seconds)
        return self._value


class Meter(Protocol):
    """What forwards and draft steps cost, from what it is told of them."""

    def saw_target(self, rows: int, tokens: int, seconds: float) -> None:
        """A target forward of ``tokens`` tokens in each of ``rows`` rows took ``seconds``."""
        ...

    def saw_draft(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """``steps`` draft steps over ``rows`` rows took ``seconds`` altogether."""
        ...

    def saw_read(self, drafter: str, tokens: int, seconds: float) -> None:
        """Reading ``tokens`` tokens that a drafter had missed took ``seconds``."""
        ...

    def costs(self, rows: int, max_tokens: int, is_packed: bool = False) -> Costs:
        """What is known at this batch size, for target forwards of 1 .. ``max_tokens`` tokens.

        is_packed: whether rows go end to end, so that a forward's seconds follow the tokens of all
        rows together; they are then told by their number, too.
        """
        ...


class CostMeter:
    """Seconds of target forwards by tokens a row, and of draft steps by drafter, per batch size.

    Never over-estimates on purpose (what is thought too dear is not played, and then nothing
    corrects it): a count is never dearer than a larger one, what lies beyond the largest that was
    measured costs what that did, fewer than the smallest cost proportionally less (so plain
    decoding is soon measured), few samples count by their minimum, and old ones are forgotten.
    Batch sizes share their samples within a factor of two. As soon as several were measured, what
    they say together, ``a + b R + c R T`` for R rows of T tokens, tells how one size differs from
    another and goes on beyond the largest count, as rows leave a batch faster than all is measured.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._target: dict[int, dict[int, _Samples]] = {}
        self._draft: dict[str, dict[int, _Samples]] = {name: {} for name in relative_costs}
        self._read: dict[str, _Samples] = {}
        self._round = 0

    def saw_target(self, rows: int, tokens: int, seconds: float) -> None:
        """Note the seconds of this many rows and tokens."""
        self._round += 1
        by_tokens = self._target.setdefault(rows.bit_length(), {})
        by_tokens.setdefault(tokens, _Samples()).add(seconds, self._round, rows)

    def saw_draft(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        """Note the seconds of a step."""
        if steps:
            samples = self._draft[drafter].setdefault(rows.bit_length(), _Samples())
            samples.add(seconds / steps, self._round, rows)

    def saw_read(self, drafter: str, tokens: int, seconds: float) -> None:
        """Note the seconds of a token, whatever the batch."""
        self._read.setdefault(drafter, _Samples()).add(seconds / tokens, self._round, 1)

    def costs(self, rows: int, max_tokens: int, is_packed: bool = False) -> Costs:
        """By what was measured at this batch size and others."""
        size = rows.bit_length()
        curves = {key: curve for key in self._target if (curve := self._curve(key))}
        counts, target_s = np.arange(1.0, max_tokens + 1), np.ones(max_tokens)
        if curves:
            own = curves[_nearest(curves, size)]
            plane = _fit(curves.values()) if len(curves) > 1 else None
            target_s = _seconds(own, counts, rows, plane)
        draft_s = {}
        for drafter, relative in self._relative.items():
            measured = {key: s.value() for key, s in self._draft[drafter].items() if s.has_value}
            value = measured[_nearest(measured, size)] if measured else relative * target_s[0]
            draft_s[drafter] = float(value)
        batch_s = None
        if is_packed and rows > 1:
            batch_s = np.interp(np.arange(1, rows * max_tokens + 1) / rows, counts, target_s)
        read_s = {name: s.value() for name, s in self._read.items() if s.has_value}
        return Costs(target_s, draft_s, batch_s, read_s)

    def _curve(self, size: int) -> Curve:
        """What was measured at one batch size, ascending, each at most that of a larger count."""
        cheapest, curve = float("inf"), {}
        for tokens, samples in sorted(self._target[size].items(), reverse=True):
            if samples.has_value and self._round - samples.last_round <= _STALE_ROUNDS:
                cheapest = min(cheapest, samples.value())
                curve[tokens] = (cheapest, samples.rows)
        return dict(reversed(curve.items()))


def _seconds(own: Curve, counts: Floats, rows: int, plane: Plane | None) -> Floats:
    """[n] seconds of target forwards over ``counts`` tokens in each of ``rows`` rows."""
    measured = np.array(list(own), dtype=float)
    values = np.array([seconds for seconds, _ in own.values()])
    if plane is None:
        share = values[0] / measured[0]
        return np.asarray(np.interp(counts, [1.0, *measured], [share, *values]))
    values += [
        plane(rows, n) - plane(r, n) for n, (_, r) in zip(measured, own.values(), strict=True)
    ]
    share = max(values[0] / measured[0], _DOUBT * float(plane(rows, np.ones(1))[0]))
    found = np.interp(counts, [1.0, *measured], [min(share, values[0]), *values])
    beyond = plane(rows, np.maximum(counts, measured[-1])) - plane(rows, measured[-1:])
    return np.asarray(np.maximum(found + beyond, values.min() / measured[0]))


def _fit(curves: Iterable[Curve]) -> Plane:
    """``a + b R + c R T``, none below 0, by least squares of the relative errors."""
    points = [(r, n, s) for curve in curves for n, (s, r) in curve.items()]
    rows, tokens, seconds = (np.array(column) for column in zip(*points, strict=True))
    features = np.stack([np.ones_like(rows), rows, rows * tokens], axis=1)
    found, *_ = np.linalg.lstsq(features / seconds[:, None], np.ones_like(rows), rcond=None)
    a, b, c = found.clip(0)
    return lambda r, n: np.asarray(a + b * r + c * r * n)


def _nearest(sizes: Iterable[int], size: int) -> int:
    return min(sizes, key=lambda known: abs(known - size))


LEAST_PIECE, LARGEST_PIECE = 16, 2048
"""Tokens that are read at once, at least and at most."""

_LATEST = 9

SHARE = 0.5
"""Of a round's seconds, what one reader may take between two rounds."""


class Pace:
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

    def saw(self, num_tokens: int, seconds: float) -> None:
        """So many tokens took so long; small pieces say little of large ones."""
        if num_tokens >= LEAST_PIECE // 2:
            self.tokens.append(seconds / num_tokens)
