"""Seconds of vLLM's own steps: by running requests, tokens verified and tokens drafted."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.integrations.vllm.fitting import above_zero, rising
from draftwise.types import Floats

_WINDOW = 15
_FEW = 4
_STALE_STEPS = 1000
_FIT_EVERY = 8
_MOST_SHAPES = 64
_FIRST_PLAIN, _DOUBLINGS = 8, 3
_FIRST_EXTRA = 8
_TRUST = 3.0
"""How many samples the common line counts for, against those of one cell."""

MARGIN = 0.01
"""What a draft must promise over none, as a share of a step: its price is hardly known better."""

DEFAULT_DRAFT_SHARE = 0.05
"""A draft step's seconds, as a share of a step that drafts nothing, until both were seen."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine in which every request decoded.

    rows: requests. tokens: tokens of all of them that went through the target. drafted: tokens
    that vLLM's own drafter then drafted a request. seconds: from scheduling to the sampled tokens.
    """

    rows: int
    tokens: int
    drafted: int
    seconds: float


class _Cell:
    """The latest steps of nearly the same shape; robust to the odd slow one.

    value: rows, drafted tokens of all rows, vLLM's drafted tokens, seconds.
    """

    def __init__(self) -> None:
        self.steps: deque[Step] = deque(maxlen=_WINDOW)
        self.last = 0
        self.value = (0.0, 0.0, 0.0, 0.0)

    def add(self, step: Step, number: int) -> None:
        """One more; what stands for all of them is made anew."""
        self.steps.append(step)
        self.last, num = number, len(self.steps)
        seconds = [step.seconds for step in self.steps]
        typical = min(seconds) if num < _FEW else statistics.median(seconds)
        rows = sum(step.rows for step in self.steps) / num
        extra = sum(step.tokens for step in self.steps) / num - rows
        self.value = rows, extra, float(step.drafted), max(typical, 1e-9)


class StepMeter:
    """What a step costs, measured while the server runs.

    vLLM verifies ragged drafts, so a step's seconds depend on the tokens of all requests together:
    ``a + b R + c E + K (d + e R)`` for R requests, E drafted tokens in all and K tokens drafted by
    vLLM's own drafter, none below 0, by least squares of the relative errors over cells of similar
    steps (median of 15; of fewer than four the minimum, for what is thought too dear is not tried
    again). What a cell says beside that line counts the more, the more samples it has.
    What never varied costs nothing as far as is known: drafting is tried before it is judged, and
    after 8, 16, 32 and then every 64 steps with drafts one goes without (``wants_plain``).

    >>> meter = StepMeter()
    >>> for tokens in [1, 5] * 8:
    ...     meter.saw(Step(rows=1, tokens=tokens, drafted=0, seconds=1 + 0.1 * (tokens - 1)))
    >>> meter.forward_s(rows=1, max_tokens=3).round(2).tolist()
    [1.0, 1.1, 1.2]
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int, int], _Cell] = {}
        self._num = 0
        self._line: Floats | None = None
        self._ratios: Mapping[int, tuple[Floats, Floats]] = {}
        self._own_drafts: set[int] = set()
        self._drafting: Counter[int] = Counter()  # by class of requests: steps since a plain one

    def saw(self, step: Step) -> None:
        """Take one step; the line is fitted anew every few, and for a shape that is new."""
        self._num += 1
        self._own_drafts.add(step.drafted)
        extra, size = step.tokens - step.rows, step.rows.bit_length()
        self._drafting[size] = self._drafting[size] + 1 if extra else 0
        key = (size, _bucket(extra), step.drafted)
        is_new = key not in self._cells
        self._cells.setdefault(key, _Cell()).add(step, self._num)
        if is_new or self._num % _FIT_EVERY == 0 or self._num < _FIT_EVERY:
            self._fit()

    def expected_s(self, step: Step) -> float:
        """What a step of this shape is believed to take, vLLM's own drafts included."""
        verified_s = float(self.forward_s(step.rows, step.tokens)[-1])
        return verified_s + step.drafted * self.draft_s(step.rows)

    def state(self) -> list[list[float]]:
        """The steps that it rests on, as plain JSON: at most 15 a shape, of the latest shapes."""
        cells = sorted(self._cells.values(), key=lambda cell: cell.last)
        return [[s.rows, s.tokens, s.drafted, s.seconds] for cell in cells for s in cell.steps]

    def load_state(self, state: Sequence[Sequence[float]]) -> None:
        """Take up what was measured before a restart; ValueError if it is something else."""
        try:
            steps = [Step(int(r), int(t), int(k), float(s)) for r, t, k, s in state]
        except TypeError as error:
            raise ValueError(f"not the state of a meter: {error}") from error
        for step in steps:
            self.saw(step)

    def forward_s(self, rows: int, max_tokens: int) -> Floats:
        """[max_tokens] seconds of a step of 1, 2, .. tokens in all; below ``rows`` as at ``rows``.

        Where nothing was measured a step takes one second.
        """
        if self._line is None:
            return np.ones(max_tokens)
        extra = np.maximum(np.arange(1, max_tokens + 1) - rows, 0.0)
        a, b, c, _, _ = self._line
        seconds = a + b * rows + c * extra
        known = self._ratios.get(rows.bit_length())
        if known is not None:
            seconds = seconds * np.interp(extra, *known)
        return np.asarray(seconds)

    def priced_s(self, rows: int, max_tokens: int) -> Floats:
        """[max_tokens] the same, with ``MARGIN`` on steps with drafts: what choices are made by."""
        seconds = self.forward_s(rows, max_tokens)
        seconds[rows:] *= 1 + MARGIN
        return seconds

    def draft_s(self, rows: int) -> float:
        """Seconds of one more token by vLLM's own drafter, for all requests together."""
        plain = float(self.forward_s(rows, rows)[-1])
        if self._line is None or len(self._own_drafts) < 2:
            return DEFAULT_DRAFT_SHARE * plain
        return float(self._line[3] + self._line[4] * rows)

    def wants_plain(self, rows: int) -> bool:
        """Whether a step of about so many requests without a draft is due.

        Many requests hardly ever have nothing to draft all at once, and a processor may read one
        token more than its kernels hold as dearly as twice as many: a line through steps with
        drafts alone would call them free.
        """
        size = rows.bit_length()
        known = (cell for key, cell in self._cells.items() if key[:2] == (size, 0))
        num = sum(len(cell.steps) for cell in known)
        return self._drafting[size] >= _FIRST_PLAIN << min(num, _DOUBLINGS)

    def most_extra(self, rows: int) -> int:
        """Drafted tokens that a step of about so many requests may hold: 8, then twice the most.

        Before anything is known of their price they are believed to cost nothing, and sixteen
        requests would draft as much as they may at once, for the price of ten steps.
        """
        size = rows.bit_length()
        seen = (key[1] for key in self._cells if key[0] == size)
        return max(_FIRST_EXTRA, 2 * _tokens_of(max(seen, default=0)))

    @property
    def wants_contrast(self) -> bool:
        """Whether vLLM's own drafter has always drafted, so that its price is not known."""
        return bool(self._own_drafts) and 0 not in self._own_drafts

    def _fit(self) -> None:
        fresh = {k: c for k, c in self._cells.items() if self._num - c.last <= _STALE_STEPS}
        if len(fresh) > _MOST_SHAPES:
            latest = sorted(fresh, key=lambda key: fresh[key].last)[-_MOST_SHAPES:]
            fresh = {key: fresh[key] for key in latest}
        self._cells = fresh
        rows, extra, drafted, seconds = np.array([cell.value for cell in fresh.values()]).T
        columns = np.stack([np.ones_like(rows), rows, extra, drafted, drafted * rows], axis=1)
        self._line = above_zero(columns / seconds[:, None])
        ratios = seconds / np.maximum(columns @ self._line, 1e-12)
        counts = np.array([len(cell.steps) for cell in fresh.values()])
        trusted = 1 + (ratios - 1) * counts / (counts + _TRUST)
        cells = np.stack([rows, extra, trusted, counts])
        sizes = np.array([key[0] for key in fresh])
        self._ratios = {
            int(size): rising(self._line, cells[:, (sizes == size) & (drafted == 0)])
            for size in set(sizes[drafted == 0])
        }


def _bucket(extra: int) -> int:
    """Drafted tokens in steps of one up to 8, then of about an eighth.

    >>> [_bucket(extra) for extra in (0, 1, 8, 9, 16, 17, 18, 32)]
    [0, 1, 8, 9, 16, 16, 17, 24]
    """
    shift = max(extra.bit_length() - 4, 0)
    return (extra >> shift) + 8 * shift


def _tokens_of(bucket: int) -> int:
    """The fewest drafted tokens of a bucket.

    >>> [_tokens_of(_bucket(extra)) for extra in (0, 8, 16, 17, 18, 32)]
    [0, 8, 16, 16, 18, 32]
    """
    shift = max(bucket // 8 - 1, 0)
    return (bucket - 8 * shift) << shift
