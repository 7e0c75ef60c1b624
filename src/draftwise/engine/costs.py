"""Measured costs: target forwards from the shared cost model, draft steps from recent samples."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from statistics import median

import numpy as np

from draftwise.controller.compiled import warm_up
from draftwise.controller.costs import Step, StepCosts
from draftwise.types import Costs

_WINDOW = 15
_FEW = 4
PLAIN_ROUNDS = 2
"""Plain rounds that are measured before drafts for each doubling of the rows, and of the longest
texts where these are FAR_TOKENS longer."""
FAR_TOKENS = 512
PLAIN_EVERY = 16, 1024
"""Rounds with drafts before the next plain one: first, and at most; 4 times as many each time."""


class _Samples:
    """Recent seconds of one kind of call: their median, or the minimum of few samples, as one slow
    call must not end drafting.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._first: float | None = None
        self._value: float | None = None

    def add(self, seconds: float) -> None:
        if self._first is None:  # it is kept apart, because it includes one-time set-up
            self._first = seconds
            return
        self._seconds.append(seconds)
        is_few = len(self._seconds) < _FEW
        self._value = min(self._first, *self._seconds) if is_few else median(self._seconds)

    def value(self, default: float) -> float:
        return default if self._value is None else self._value


class MeasuredCostModel:
    """The shared cost model (``controller.StepCosts``), and seconds of a draft step by drafter.

    Draft steps are kept by batch size, rounded to powers of two, and the nearest size is used.
    Before any sample a draft step costs the drafter's share of the target's parameters, and a
    target forward 1 s.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._target = StepCosts()
        warm_up()
        self._draft = {name: defaultdict[int, _Samples](_Samples) for name in relative_costs}
        self._read = defaultdict[str, _Samples](_Samples)
        self._plain = Counter[int]()
        self._longest = self._num_far = self._num_drafted = 0
        self._next_plain = PLAIN_EVERY[0]

    def record_target_step(self, rows: int, tokens: int, context: int, seconds: float) -> float:
        """Record a target forward; return the seconds of the same step without drafts.

        tokens: of all rows, padding included. context: tokens of all rows' texts before it.
        """
        if tokens > rows:
            self._num_drafted += 1
        else:
            self._plain[rows.bit_length()] += 1
            if self._is_far(context):
                self._num_far = (self._num_far + 1) % PLAIN_ROUNDS
                self._longest = self._longest if self._num_far else context
            if self._num_drafted >= self._next_plain:
                self._next_plain = min(4 * self._next_plain, PLAIN_EVERY[1])
            self._num_drafted = 0
        return self._target.observe(Step(rows, tokens, seconds), context)

    def wants_plain(self, rows: int, context: int) -> bool:
        """Whether to measure a plain round now: else its price would include what drafts cost."""
        return (
            self._plain[rows.bit_length()] < PLAIN_ROUNDS
            or self._is_far(context)
            or self._num_drafted >= self._next_plain
        )

    def _is_far(self, context: int) -> bool:
        return context > 2 * self._longest + FAR_TOKENS

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        if steps:
            self._draft[drafter][rows.bit_length()].add(seconds / steps)

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        self._read[drafter].add(seconds / tokens)

    def costs(self, rows: int, max_tokens: int, context: int, is_packed: bool = False) -> Costs:
        """Costs at this batch size, for target forwards of 1 .. ``max_tokens`` tokens per row.

        context: tokens of all rows' texts. is_packed: whether rows are concatenated without
        padding; seconds are then also given by the total number of tokens (``batch_s``).
        """
        seconds = np.ones(rows * max_tokens)
        if self._target.is_known:
            known = self._target.seconds(rows, context, 0, rows * (max_tokens - 1))
            # a forward over fewer tokens than rows does not occur
            seconds = np.concatenate([np.full(rows - 1, known[0]), known])
            # first drafts are short: far beyond the largest forward a token costs as without drafts
            far = 2 * max(self._target.largest, rows)
            plain_rate_s = known[0] / rows * np.arange(far + 1, len(seconds) + 1)
            seconds[far:] = np.maximum(seconds[far:], plain_rate_s)
        target_s, size = seconds[rows - 1 :: rows], rows.bit_length()
        draft_s, plain_s = {}, float(target_s[0])
        for drafter, relative in self._relative.items():
            draft_s[drafter] = guess = relative * plain_s
            if measured := self._draft[drafter]:
                nearest = min(measured, key=lambda known: abs(known - size))
                draft_s[drafter] = measured[nearest].value(guess)
        read_s = {name: s for name, own in self._read.items() if (s := own.value(0.0))}
        return Costs(target_s, draft_s, seconds if is_packed and rows > 1 else None, read_s)


TOKEN_SHARE = 0.02  # cost of each further token of a row, in target forwards over one token


class FixedCostModel:
    """As ``MeasuredCostModel``, with a clock that advances by a fixed cost per recorded forward.

    A target forward over T tokens per row costs ``1 + TOKEN_SHARE (T - 1)``, a draft step the
    drafter's relative size. All choices therefore follow from the prompt and the seed.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._now = 0.0

    def clock(self) -> float:
        return self._now

    def wants_plain(self, rows: int, context: int) -> bool:
        return False

    def record_target_step(self, rows: int, tokens: int, context: int, seconds: float) -> float:
        self._now += 1.0 + TOKEN_SHARE * (-(-tokens // rows) - 1)
        return 1.0

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        self._now += steps * self._relative[drafter]

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        self._now += TOKEN_SHARE * tokens * self._relative[drafter]

    def costs(self, rows: int, max_tokens: int, context: int, is_packed: bool = False) -> Costs:
        target_s = 1.0 + TOKEN_SHARE * np.arange(max_tokens, dtype=np.float64)
        return Costs(target_s, dict(self._relative))


CostModel = MeasuredCostModel | FixedCostModel

LEAST_PIECE, LARGEST_PIECE = 16, 2048  # smallest and largest chunk of a prefill, in tokens
SHARE = 0.5  # most seconds of a chunk, as a share of a round


class PrefillBudget:
    """The chunk size of a prefill between two rounds.

    A chunk may take half as long as a round, estimated from earlier chunks: with a prompt's chunk
    and a drafter's chunk in one step, no row waits for more than about two rounds. State: recent
    seconds of a round, and per prefilled token; medians, since a pause must not enlarge chunks.
    """

    def __init__(self) -> None:
        self.rounds, self.tokens = deque[float](maxlen=9), deque[float](maxlen=9)

    def budget(self, is_idle: bool) -> int:
        """Tokens for one step; the largest chunk if no row is running."""
        if is_idle:
            return LARGEST_PIECE
        if not self.tokens or not self.rounds:
            return LEAST_PIECE
        most = SHARE * median(self.rounds) / max(median(self.tokens), 1e-9)
        return int(min(LARGEST_PIECE, max(LEAST_PIECE, most)))

    def record(self, num_tokens: int, seconds: float) -> None:
        if num_tokens >= LEAST_PIECE // 2:  # smaller chunks predict large ones badly
            self.tokens.append(seconds / num_tokens)
