"""Cost model: seconds of a step by its tokens, requests, context and drafting.

The model is linear, and a Kalman filter learns it:

    seconds = base + a * requests + b * context tokens + c * prefill tokens + d * (any prefill)
            + e * (the model drafts) + f * its length + g * drafted tokens * context of a request
            + stairs below the number of tokens

A stair is a jump between two numbers of tokens, so seconds may rise anywhere: evenly on a CPU, by
a third from 128 to 129 tokens on a GPU. Unmeasured jumps have a small prior and share the rise
measured around them. Confidence in old measurements decays (a random walk), by shape: a step
informs only the jumps below its number of tokens. When all seconds change by one factor (another
clock rate, a busier machine), the model follows within a few steps. Single slow steps (outliers)
have little weight.

``StepCosts`` are those of a step of any engine; ``MeasuredCostModel`` adds the draft steps of
draftwise's own engine, and ``FixedCostModel`` stands in for it where nothing may depend on time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from draftwise.compiled import compiled, warm_up, warms_up
from draftwise.types import Costs, Floats, Ints

EDGES = np.array(
    [*range(1, 32), *range(32, 256, 8), *range(256, 1024, 32), *range(1024, 8192, 256)], np.int64
)
"""Numbers of tokens above which a step may take longer."""
_EDGES = tuple(EDGES.tolist())
BASE, REQUESTS, CONTEXT, PREFILL, MIXED, DRAFTS, LENGTH, ATTENTION, NUM_OTHERS = range(9)
"""Indices of the coefficients before the stairs. MIXED: the step has any prefill (other kernels, no
CUDA graph, prefill of the drafter). ATTENTION: of drafted tokens to the preceding text."""
SIZE = NUM_OTHERS + len(EDGES)

WARM_UP = 64
"""Steps within which two in a row reset the prior if their mean is below 0.85 times the prior's
seconds and they have at least as many tokens: the engine was still warming up. Two, since a step
looks short if the previous one was reported late."""
SCALE_STEPS = 6
"""Steps in a row that are slower (or faster) by SCALE_CHANGE before all seconds are rescaled."""
SCALE_CHANGE = 0.12
PAUSE = 4.0  # a step counts for at most this multiple of its predicted seconds (the machine paused)
INTERRUPTED = 2.0
"""Multiple of the predicted seconds beyond which a step was interrupted: engines load or compile a
kernel when a shape first occurs, which does not predict the shape's later steps."""
EXCUSED = 16
"""Interrupted steps with drafts that are excused initially, and one more per 256 steps.
They count as predicted and are not learned from. A shape that is interrupted twice in a row is not
excused: then both steps count."""

PLAIN, VARIANCE, RUN, RATIOS = range(4)
"""Indices of scalars: seconds of the plain step that scales the prior, variance of a measurement,
steps since the last rescaling, and from RATIOS on measured / predicted seconds of recent steps."""


@dataclass(frozen=True, slots=True)
class Step:
    """Facts of one step of the engine.

    num_requests: requests that decoded. num_tokens: all tokens, including verified drafts and
    prefill. seconds: time of the engine, without the controller's overhead. num_drafted: tokens
    that the model drafter wrote for each request during the step (0: it did not draft).
    num_context: tokens of all texts before the step; None: counted by the controller.
    num_prefill: prompt tokens in the step. own_seconds: time that the controller's calls added to
    the step.
    """

    num_requests: int
    num_tokens: int
    seconds: float
    num_drafted: int = 0
    num_context: int | None = None
    num_prefill: int = 0
    own_seconds: float = 0.0


def _features(
    tokens: int, requests: int, context: int, prefill: int, length: int, scales: Floats
) -> Floats:
    """[NUM_OTHERS + n] the features, with n stairs below the number of tokens."""
    stairs = bisect_left(_EDGES, tokens)
    x = np.ones(NUM_OTHERS + stairs)
    x[REQUESTS] = requests * scales[REQUESTS]
    x[CONTEXT] = context * scales[CONTEXT]
    x[PREFILL] = prefill * scales[PREFILL]
    x[MIXED] = prefill > 0
    x[DRAFTS] = length > 0
    x[LENGTH] = length
    x[ATTENTION] = (tokens - requests - prefill) * (context / max(requests, 1)) * scales[ATTENTION]
    return x


def _rescale(mean: Floats, spread: Floats, scalars: Floats, ratio: float) -> float:
    """Rescale all seconds once SCALE_STEPS steps in a row were slower, or faster, than predicted.

    Returns the factor.
    """
    run = int(scalars[RUN])
    scalars[RATIOS + run % SCALE_STEPS] = ratio
    scalars[RUN] = run + 1
    if run + 1 < SCALE_STEPS:
        return 1.0
    recent = scalars[RATIOS:].tolist()
    low, high = min(recent), max(recent)
    if low <= 1 + SCALE_CHANGE and high >= 1 / (1 + SCALE_CHANGE):
        return 1.0
    # the smallest of the changes: later steps supply the rest
    factor: float = low if low > 1.0 else high
    mean *= factor
    spread *= factor * factor
    scalars[PLAIN] *= factor
    scalars[VARIANCE] *= factor * factor
    scalars[RUN] = 0
    return factor


def _update(
    mean: Floats, spread: Floats, x: Floats, known: int, y: float, believed: float, scalars: Floats
) -> None:
    """Kalman update with one measurement.

    known: coefficients that were ever measured; the others are independent of them and stay
    unchanged.
    """
    num, noise = len(x), float(scalars[VARIANCE])
    gain = x @ spread[:num, :known]
    variance = noise + float(gain[:num] @ x)
    innovation = y - believed
    is_new = variance > 4.0 * noise  # the time of such a shape is unknown, so it is not clipped
    bound = math.inf if is_new else 4.0 * math.sqrt(variance)
    used = min(max(innovation, -bound), bound)
    weights = gain / variance
    mean[:known] += weights * used
    spread[:known, :known] -= weights[:, None] * gain
    if is_new:  # a wrong guess says nothing about noise
        return
    # the part of the error that the uncertainty of the coefficients does not explain
    error = min(innovation * innovation, 16 * variance) - (variance - noise)
    least = (2e-3 * scalars[PLAIN]) ** 2
    scalars[VARIANCE] = 0.98 * noise + (1 - 0.98) * max(error, least)


def observe(
    tokens: int, requests: int, context: int, prefill: int, length: int, largest: int,
    seconds: float, most: float, scales: Floats, mean: Floats, spread: Floats, scalars: Floats,
) -> float:  # fmt: skip
    """Learn from one step; return the seconds that were predicted.

    largest: tokens of the largest step so far. most: multiple of the predicted seconds beyond which
    the step is not learned from.

    Not compiled: that would take numba ten seconds before the first answer, to save about 40 us a
    step (2 GHz, one request).
    """
    known = NUM_OTHERS + bisect_left(_EDGES, max(largest, tokens))
    x = _features(tokens, requests, context, prefill, length, scales)
    believed = float(mean[: len(x)] @ x)
    believed *= _rescale(mean, spread, scalars, seconds / max(believed, 1e-9))
    # a coefficient changes by this variance in a step
    spread.reshape(-1)[:: len(mean) + 1] += (2e-4 * scalars[PLAIN]) ** 2
    if seconds <= most * believed:
        _update(mean, spread, x, known, seconds, believed, scalars)
    return believed


@compiled
def fill_seconds(
    requests: int, context: int, length: int, num: int, edges: Ints, scales: Floats, mean: Floats,
    out: Floats,
) -> None:  # fmt: skip
    """out[x], x = 0 .. num: seconds of a step of requests + x tokens and a draft of ``length``."""
    total = mean[BASE] + mean[REQUESTS] * scales[REQUESTS] * requests
    total += mean[CONTEXT] * scales[CONTEXT] * context
    if length > 0:
        total += max(mean[DRAFTS] + mean[LENGTH] * length, 0.0)
    each = mean[ATTENTION] * scales[ATTENTION] * context / max(requests, 1)
    stair = 0
    for x in range(num + 1):
        while stair < len(edges) and edges[stair] < requests + x:
            total += mean[NUM_OTHERS + stair]
            stair += 1
        out[x] = total + each * x
    # Enforce that a step takes no longer than one with more tokens. Otherwise a jump measured too
    # high by chance would keep its tokens from being drafted, and so from being measured, for good.
    for x in range(num - 1, 0, -1):
        out[x] = max(min(out[x], out[x + 1]), out[0])


class StepCosts:
    """The cost model of one engine: ``observe`` learns from steps, ``seconds`` predicts.

    State: mean and covariance of the coefficients (a normal distribution), the plain step that
    scales the prior, the noise, the largest step measured, the excuses left, the excused seconds
    of interrupted steps by shape (bits of its tokens, draft length, prefill).
    ``counted_s``: seconds of the latest step; for an interrupted one its predicted seconds if it is
    excused, otherwise at most PAUSE times these, and what the shape's step before was excused.

    Steps with drafts do not show whether plain decoding has become slower, too. Where another
    program slows only wide steps, the model would price plain decoding too high, and drafts would
    seem to pay. ``proven_s`` is the latest step's price without drafts by the coefficients after
    the last plain step, if there was one and it is lower. ``confirmed``: after a plain step, the
    part of the rise since the plain step before that it has shown, in [0, 1]; otherwise None.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.largest = 0
        self.longest = 0
        self.counted_s = self.proven_s = 0.0
        self.confirmed: float | None = None
        self._num_mixed = self._first_tokens = 0
        self._excused = float(EXCUSED)
        self._interrupted: dict[tuple[int, int, bool], float] = {}
        self._last_share = 1.0
        self._mean: Floats = np.zeros(SIZE)
        self._proven: Floats = np.zeros(SIZE)
        self._is_proven = False
        self._spread: Floats = np.zeros((SIZE, SIZE))
        self._scales = np.ones(NUM_OTHERS)
        self._scalars = np.ones(RATIOS + SCALE_STEPS)
        self._seconds, self._one = np.zeros(1024), np.zeros(1)

    @property
    def is_known(self) -> bool:
        """Whether a step was measured or a price table was loaded."""
        return self.num_steps > 0

    def observe(self, step: Step, num_context: int) -> float:
        """Learn from one step; return the seconds of a plain step of its requests.

        A step without tokens or seconds is ignored, and its seconds are returned.
        """
        self.counted_s = self.proven_s = step.seconds
        self.confirmed = None
        if step.num_tokens < 1 or not 0.0 < step.seconds < np.inf:
            return step.seconds
        # a pure decoding step is the better prior
        if not self.is_known and step.num_prefill and self._num_mixed < 32:
            self._num_mixed += 1
            return step.seconds
        if not self.is_known or self._was_slow(step):
            self._begin(step)
        has_drafts = step.num_tokens > step.num_requests + step.num_prefill or step.num_drafted > 0
        shape = step.num_tokens.bit_length(), step.num_drafted, step.num_prefill > 0
        self._excused = min(self._excused + 1 / 256, EXCUSED)
        may_excuse = shape not in self._interrupted and (self._excused >= 1 or not has_drafts)
        believed = observe(
            step.num_tokens, step.num_requests, num_context, step.num_prefill, step.num_drafted,
            self.largest, step.seconds, INTERRUPTED if may_excuse else math.inf,
            self._scales, self._mean, self._spread, self._scalars,
        )  # fmt: skip
        self.num_steps += 1
        is_interrupted = step.seconds > INTERRUPTED * believed > 0
        owed_s = self._interrupted.pop(shape, 0.0)
        if is_interrupted:
            self.counted_s = min(step.seconds, PAUSE * believed) + owed_s
            self._interrupted[shape] = 0.0
            if may_excuse:
                self._interrupted[shape] = self.counted_s - believed
                self._excused -= has_drafts
                self.counted_s = believed
        if not (is_interrupted and may_excuse):
            self.largest = max(self.largest, step.num_tokens)
            self.longest = max(self.longest, step.num_drafted)
            if not has_drafts and not step.num_prefill:
                self._prove(step, num_context, believed)
        plain = self.proven_s = self._plain_seconds(step, num_context, self._mean)
        if self._is_proven:
            self.proven_s = min(plain, self._plain_seconds(step, num_context, self._proven))
        return plain

    def _prove(self, step: Step, num_context: int, believed: float) -> None:
        """Take over the coefficients, lowered if a plain step was faster than they predicted."""
        rise = 0.0
        if self._is_proven:
            rise = believed - self._plain_seconds(step, num_context, self._proven)
        shown = step.seconds - believed + rise
        self.confirmed = min(max(shown / rise, 0.0), 1.0) if rise > 0 else 1.0
        self._proven[:], self._is_proven = self._mean, True
        if step.seconds * (1 + SCALE_CHANGE) < believed:
            self._proven *= step.seconds / believed

    def _plain_seconds(self, step: Step, num_context: int, mean: Floats) -> float:
        """Seconds of the step without drafts, by these coefficients."""
        fill_seconds(step.num_requests, num_context, 0, 0, EDGES, self._scales, mean, self._one)
        return self._one.item()

    def _was_slow(self, step: Step) -> bool:
        """Whether the prior's steps were much slower than this one (warm-up, a long prompt)."""
        share = step.seconds / self._scalars.item(PLAIN)
        if self.num_steps < 16 and share < 0.5:
            return True
        if self.num_steps >= WARM_UP or step.num_tokens < self._first_tokens:
            return False
        before, self._last_share = self._last_share, share
        return before + share < 2 * 0.85

    def seconds(
        self, num_requests: int, num_context: int, num_drafted: int, num_tokens: int
    ) -> Floats:
        """[num_tokens + 1] seconds of steps with num_requests + 0, 1, .. num_tokens tokens.

        The next call overwrites the array.
        """
        if num_tokens >= len(self._seconds):
            self._seconds = np.zeros(2 * num_tokens)
        fill_seconds(
            num_requests, num_context, num_drafted, num_tokens, EDGES, self._scales, self._mean,
            self._seconds,
        )  # fmt: skip
        return self._seconds[: num_tokens + 1]

    def draft_seconds(self, num_drafted: int) -> float:
        """Seconds of the model drafter for drafts of num_drafted tokens."""
        fixed, each = self.draft_price
        return max(fixed + each * num_drafted, 0.0) if num_drafted else 0.0

    @property
    def draft_price(self) -> tuple[float, float]:
        """Seconds of the model drafter: fixed, and per token of its draft."""
        return self._mean.item(DRAFTS), self._mean.item(LENGTH)

    def load_table(
        self, seconds: Mapping[int, float], draft_s: tuple[float, float] | None = None
    ) -> None:
        """Start from a price table: seconds of a step by its number of tokens.

        Seconds are interpolated linearly, and extrapolated beyond the last entry. draft_s: seconds
        of the model drafter, fixed and per token. Measured steps correct the table. Errors:
        ValueError.
        """
        tokens = np.array(sorted(seconds), float)
        prices = np.array([seconds[num] for num in sorted(seconds)], float)
        given = np.append(prices, draft_s or ())
        if not len(tokens) or tokens[0] < 1 or not np.isfinite(given).all() or prices.min() <= 0:
            raise ValueError("a table of prices needs seconds above 0 for numbers of tokens from 1")
        if (np.diff(prices) < 0).any():
            raise ValueError("in a table of prices a step with more tokens must not take less time")
        self._begin(Step(1, 1, prices[0].item()))
        ends = np.append(EDGES, 2 * EDGES[-1]).astype(float)
        values = np.interp(ends, tokens, prices)
        if len(tokens) > 1:
            slope = (prices[-1] - prices[-2]) / (tokens[-1] - tokens[-2])
            values += slope * np.maximum(ends - tokens[-1], 0.0)
        self._mean[NUM_OTHERS:] = np.diff(values)
        known = np.flatnonzero(tokens[-1] > EDGES) + NUM_OTHERS
        self._spread[known, known] = (0.02 * prices[0]) ** 2
        if draft_s is not None:
            self._mean[[DRAFTS, LENGTH]] = draft_s
        self.num_steps, self.largest = WARM_UP, int(tokens[-1])

    def prefill_seconds(self, num_requests: int, num_prefill: int) -> float:
        """Seconds of num_prefill prompt tokens in a step in which num_requests requests decode."""
        if not num_prefill or not self.is_known:
            return 0.0
        first, last = np.searchsorted(EDGES, [num_requests, num_requests + num_prefill])
        slope, fixed = float(self._mean[PREFILL] * self._scales[PREFILL]), self._mean.item(MIXED)
        stairs = float(self._mean[NUM_OTHERS + first : NUM_OTHERS + last].sum())
        return max(stairs + slope * num_prefill + fixed, 0.0)

    def _begin(self, step: Step) -> None:
        """Set the prior, in shares of the seconds of ``step``."""
        plain = step.seconds
        self._first_tokens, self._last_share = step.num_tokens, 1.0
        self._scalars[:] = 1.0
        self._scalars[PLAIN], self._scalars[VARIANCE] = plain, (0.05 * plain) ** 2
        self._scalars[RUN] = 0
        self._scales[:] = 1.0
        self._scales[REQUESTS] = 1 / max(step.num_requests, 16)
        self._scales[CONTEXT] = 1 / (2000.0 * max(step.num_requests, 1))
        self._scales[PREFILL] = 1 / 512
        self._scales[ATTENTION] = self._scales[CONTEXT] / 16
        ends = np.append(EDGES[1:], 2 * EDGES[-1])
        self._mean[:] = 0.0
        self._mean[LENGTH] = 0.04 * plain
        self._mean[NUM_OTHERS:] = 0.03 * plain * np.log2(ends / EDGES)  # for twice the tokens
        below = NUM_OTHERS + int(np.searchsorted(EDGES, step.num_tokens))
        self._mean[BASE] = plain - self._mean[NUM_OTHERS:below].sum()
        deviations = np.full(SIZE, 0.1 * plain)
        widths = np.sqrt((ends - EDGES) / np.maximum(EDGES / 8, 1.0))
        deviations[NUM_OTHERS:] *= np.minimum(widths, 2.0)
        deviations[[BASE, PREFILL]] = plain
        deviations[[CONTEXT, MIXED, ATTENTION]] = 0.3 * plain, 0.3 * plain, 0.1 * plain
        deviations[[REQUESTS, DRAFTS, LENGTH]] = 0.05 * plain, 0.01 * plain, 0.02 * plain
        self._spread[:] = np.diag(deviations**2)
        self._is_proven = False

    def state(self) -> dict[str, Any]:
        """The state for a later run on the same machine, model and settings."""
        return {
            "edges": EDGES.tolist(),
            "num_steps": self.num_steps,
            "largest": self.largest,
            "longest": self.longest,
            "plain_s": self._scalars.item(PLAIN),
            "noise_s": self._scalars.item(VARIANCE) ** 0.5,
            "scales": self._scales.tolist(),
            "mean": self._mean.tolist(),
            "variance": np.diag(self._spread).tolist(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``. Errors: ValueError if it does not fit."""
        try:
            if list(state["edges"]) != EDGES.tolist():
                raise ValueError("its stairs are not those of this version")
            counts = [int(state[key]) for key in ("num_steps", "largest", "longest")]
            num = counts[0]
            if num == 0:
                return
            mean, variance = like(self._mean, state["mean"]), like(self._mean, state["variance"])
            scales = like(self._scales, state["scales"])
            plain, noise = like(np.zeros(2), [state["plain_s"], state["noise_s"]]).tolist()
            if not 0 <= min(counts) <= max(counts) < 2**53:
                raise ValueError("a count is out of its range")
            if variance.min() < 0 or min(plain, noise, *scales) <= 0:
                raise ValueError("a number is out of its range")
            # squares of larger numbers can overflow
            if np.abs([*mean, *variance, *scales, plain, noise]).max() > 1e9:
                raise ValueError("a number is out of its range")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"the cost model's state does not fit: {error}") from error
        self._mean[:], self._scales[:] = mean, scales
        self._spread[:] = np.diag(variance)
        self._scalars[:] = 1.0
        self._scalars[PLAIN], self._scalars[VARIANCE] = plain, noise**2
        self._scalars[RUN] = 0
        self.num_steps, self.largest, self.longest = counts


def like(array: Floats, values: Any) -> Floats:
    """Convert numbers of a state; ValueError unless finite and of the shape of ``array``."""
    found = np.array(values, float)
    if found.shape != array.shape or not np.isfinite(found).all():
        raise ValueError(f"{array.shape} finite numbers were expected")
    return found


@warms_up
def _warm_up() -> None:
    costs = StepCosts()
    costs.observe(Step(1, 1, 0.01), 1)
    costs.seconds(1, 1, 1, 2)


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
