"""Seconds of a step: tokens in it, requests, context and the model drafter's length.

The model is linear, and a Kalman filter learns it:

    seconds = base + stairs below the number of tokens
            + a * requests + b * context tokens + c * prefill tokens
            + d * (the model drafts) + e * its length

A stair is a jump between two numbers of tokens, so a price may rise anywhere: evenly on a CPU, by
a third from 128 to 129 tokens on a GPU. Jumps that were not measured are believed to be small and
share what the steps around them show. What was measured long ago is believed less (a random walk),
by shape: a step informs about the jumps below its own number of tokens and about no others. A
change of all seconds by one factor (a slower clock, a busier machine) is followed within a few
steps. Single slow steps (outliers) count little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.compiled import compiled, warms_up

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EDGES = np.array(
    [*range(1, 32), *range(32, 256, 8), *range(256, 1024, 32), *range(1024, 8192, 256)], np.int64
)
"""Numbers of tokens after which a step may take longer."""
REQUESTS, CONTEXT, PREFILL, DRAFTS, LENGTH, BASE = range(6)
"""Coefficients that come after those of the stairs."""
NUM_OTHERS = 6

JUMP = 0.03
"""Prior mean of a doubling of the tokens, as a share of a plain step."""
JUMP_SPREAD = 0.1
"""Prior standard deviation of one jump, as a share of a plain step."""
DRAFT_SHARE = 0.04
"""Prior of a token of the model drafter, as a share of a plain step."""
NOISE = 0.01
"""Standard deviation of a measurement at the start, as a share of it."""
DRIFT = 2e-4
"""Standard deviation by which a jump may change in one step, as a share of a plain step."""
LEAST_NOISE = 2e-3
"""Standard deviation of a measurement at least, as a share of a plain step."""
OUTLIER = 4.0
"""Standard deviations beyond which a measurement is cut."""
SCALE_STEPS = 6
"""Steps in a row that are slower (or faster) by SCALE_CHANGE before all seconds are rescaled."""
SCALE_CHANGE = 0.12


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the engine did and took.

    num_requests: requests that decoded. num_tokens: tokens in it, verified drafts and prefill
    included. seconds: of the engine, without the controller's own work. num_drafted: tokens that
    the model drafter wrote for each request during the step (0: it did not draft).
    num_context: tokens of all texts before the step; None: the controller's own count of those it
    knows. num_prefill: tokens of prompts that were read. own_seconds: that the controller's calls
    added to the step.
    """

    num_requests: int
    num_tokens: int
    seconds: float
    num_drafted: int = 0
    num_context: int | None = None
    num_prefill: int = 0
    own_seconds: float = 0.0


@compiled
def _features(step: Floats, edges: Ints, scales: Floats, out: Floats) -> int:
    """out: the coefficients' factors for (tokens, requests, context, prefill, length); stairs."""
    num = 0
    while num < len(edges) and edges[num] < step[0]:
        out[num] = 1.0
        num += 1
    out[num : len(edges)] = 0.0
    others = out[len(edges) :]
    others[REQUESTS] = step[1] * scales[REQUESTS]
    others[CONTEXT] = step[2] * scales[CONTEXT]
    others[PREFILL] = step[3] * scales[PREFILL]
    others[DRAFTS] = 1.0 if step[4] > 0 else 0.0
    others[LENGTH] = step[4]
    others[BASE] = 1.0
    return num


@compiled
def _update(mean: Floats, spread: Floats, x: Floats, y: float, noise: float) -> tuple[float, float]:
    """Kalman's update by one measurement; returns its innovation and that one's variance."""
    size = len(mean)
    gain = np.zeros(size)
    innovation, variance = y, noise
    for i in range(size):
        if x[i] != 0.0:
            innovation -= mean[i] * x[i]
            for j in range(size):
                gain[j] += spread[j, i] * x[i]
    for i in range(size):
        variance += gain[i] * x[i]
    # a step of a shape that is not known yet may take any time; of one that is, an outlier is cut
    bound = OUTLIER * np.sqrt(variance)
    if variance > 4.0 * noise:
        bound = np.inf
    used = min(max(innovation, -bound), bound)
    for i in range(size):
        mean[i] += gain[i] / variance * used
        for j in range(size):
            spread[i, j] -= gain[i] * gain[j] / variance
    return innovation, variance


@compiled
def _seconds(mean: Floats, edges: Ints, first: int, extra: float, out: Floats) -> None:
    """out[x]: of first + x tokens."""
    total, stair = extra, 0
    for x in range(len(out)):
        while stair < len(edges) and edges[stair] < first + x:
            total += mean[stair]
            stair += 1
        out[x] = total


class StepCosts:
    """The cost model of one engine: ``observe`` steps, ask for ``seconds``.

    State: ``mean`` and ``spread`` of the coefficients (a normal distribution), the plain step that
    the prior was made for, the noise, and the largest step that was measured.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.largest = 0
        self.longest = 0
        self._plain = 0.0
        self._noise = 0.0
        self._mean: Floats = np.zeros(0)
        self._spread: Floats = np.zeros((0, 0))
        self._scales = np.ones(NUM_OTHERS)
        self._run = 0
        self._ratios = np.ones(SCALE_STEPS)
        self._x = np.zeros(len(EDGES) + NUM_OTHERS)

    @property
    def is_known(self) -> bool:
        """Whether a step was measured."""
        return self.num_steps > 0

    def observe(self, step: Step, num_context: int) -> None:
        """Learn from one step; steps without tokens or seconds say nothing."""
        if step.num_tokens < 1 or not 0.0 < step.seconds < np.inf:
            return
        if not self.is_known:
            self._begin(step)
        facts = np.array(
            [step.num_tokens, step.num_requests, num_context, step.num_prefill, step.num_drafted],
            float,
        )
        _features(facts, EDGES, self._scales, self._x)
        believed = float(self._mean @ self._x)
        self._follow_scale(step.seconds / max(believed, 1e-9))
        # the random walk: what was measured long ago is worth less
        self._spread[np.diag_indices(len(self._mean))] += (DRIFT * self._plain) ** 2
        innovation, variance = _update(
            self._mean, self._spread, self._x, step.seconds, self._noise**2
        )
        # the part of the error that the coefficients' own uncertainty does not explain
        error = min(innovation * innovation, 16 * variance) - (variance - self._noise**2)
        least = (LEAST_NOISE * self._plain) ** 2
        self._noise = float(np.sqrt(0.98 * self._noise**2 + 0.02 * max(error, least)))
        self.num_steps += 1
        self.largest = max(self.largest, step.num_tokens)
        self.longest = max(self.longest, step.num_drafted)

    def seconds(
        self, num_requests: int, num_context: int, num_drafted: int, num_tokens: int
    ) -> Floats:
        """[n] seconds of steps with num_requests + 0, 1, .. num_tokens tokens."""
        others = self._mean[len(EDGES) :] * self._scales
        extra = (
            others[BASE] + others[REQUESTS] * num_requests + others[CONTEXT] * num_context
            + self.draft_seconds(num_drafted)
        )  # fmt: skip
        out = np.empty(num_tokens + 1)
        _seconds(self._mean, EDGES, num_requests, float(extra), out)
        return out

    def draft_seconds(self, num_drafted: int) -> float:
        """Of the model drafter, for a draft of so many tokens by each request."""
        if not num_drafted:
            return 0.0
        others = self._mean[len(EDGES) :]
        return max(float(others[DRAFTS] + others[LENGTH] * num_drafted), 0.0)

    def prefill_seconds(self, num_requests: int, num_prefill: int) -> float:
        """Of reading so many prompt tokens in a step in which so many requests decode."""
        if not num_prefill or not self.is_known:
            return 0.0
        first, last = np.searchsorted(EDGES, [num_requests, num_requests + num_prefill])
        slope = float(self._mean[len(EDGES) + PREFILL] * self._scales[PREFILL])
        return max(float(self._mean[first:last].sum()) + slope * num_prefill, 0.0)

    def _begin(self, step: Step) -> None:
        """The prior, in shares of the first step's seconds."""
        plain = step.seconds
        size = len(EDGES) + NUM_OTHERS
        self._plain, self._noise = plain, NOISE * plain
        self._mean = np.zeros(size)
        ends = np.append(EDGES[1:], 2 * EDGES[-1])
        self._mean[: len(EDGES)] = JUMP * plain * np.log2(ends / EDGES)
        self._spread = np.zeros((size, size))
        widths = np.sqrt((ends - EDGES) / np.maximum(EDGES / 8, 1.0))
        deviations = np.full(size, JUMP_SPREAD * plain)
        deviations[: len(EDGES)] *= np.minimum(widths, 2.0)
        others = deviations[len(EDGES) :]
        self._scales = np.ones(NUM_OTHERS)
        self._scales[REQUESTS] = 1 / max(step.num_requests, 16)
        self._scales[CONTEXT] = 1 / (2000.0 * max(step.num_requests, 1))
        self._scales[PREFILL] = 1 / 512
        others[REQUESTS], others[CONTEXT], others[PREFILL] = 0.05 * plain, 0.3 * plain, plain
        others[DRAFTS], others[LENGTH], others[BASE] = 0.01 * plain, 0.02 * plain, plain
        self._mean[len(EDGES) + LENGTH] = DRAFT_SHARE * plain
        below = int(np.searchsorted(EDGES, step.num_tokens))
        self._mean[len(EDGES) + BASE] = plain - self._mean[:below].sum()
        np.fill_diagonal(self._spread, deviations**2)

    def _follow_scale(self, ratio: float) -> None:
        """Rescale everything once several steps in a row were slower, or faster, than believed."""
        self._ratios[self._run % SCALE_STEPS] = ratio
        self._run += 1
        if self._run < SCALE_STEPS:
            return
        low, high = self._ratios.min(), self._ratios.max()
        if low > 1 + SCALE_CHANGE or high < 1 / (1 + SCALE_CHANGE):
            factor = float(np.median(self._ratios))
            self._mean *= factor
            self._spread *= factor * factor
            self._plain *= factor
            self._noise *= factor
            self._run = 0

    def state(self) -> dict[str, Any]:
        """What the next run on the same machine, model and settings may begin with."""
        return {
            "edges": EDGES.tolist(),
            "num_steps": self.num_steps,
            "largest": self.largest,
            "longest": self.longest,
            "plain_s": self._plain,
            "noise_s": self._noise,
            "scales": self._scales.tolist(),
            "mean": self._mean.tolist(),
            "variance": np.diag(self._spread).tolist(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state`` gave. Errors: ValueError where it does not fit."""
        size = len(EDGES) + NUM_OTHERS
        if list(state["edges"]) != EDGES.tolist():
            raise ValueError("the cost model's stairs are others in this version")
        if not state["num_steps"]:
            return
        mean, variance = np.array(state["mean"], float), np.array(state["variance"], float)
        scales = np.array(state["scales"], float)
        values = np.concatenate([mean, variance, scales, [state["plain_s"], state["noise_s"]]])
        if mean.shape != (size,) or variance.shape != (size,) or not np.isfinite(values).all():
            raise ValueError("the cost model's state is damaged")
        self._mean, self._scales = mean, scales
        self._spread = np.diag(variance)
        self._plain, self._noise = float(state["plain_s"]), float(state["noise_s"])
        self.num_steps, self.largest = int(state["num_steps"]), int(state["largest"])
        self.longest = int(state["longest"])


@warms_up
def _warm_up() -> None:
    costs = StepCosts()
    costs.observe(Step(1, 1, 0.01), 1)
    costs.observe(Step(1, 2, 0.01, num_drafted=1), 2)
    costs.seconds(1, 1, 1, 2)
