"""Paired, interleaved timing: every method answers every prompt in turn, in one process.

Machines are noisy and drift, so only ratios between methods of one run are meant to be read: per
prompt the median of the repeats, then the ratio of tokens over seconds, with a bootstrap interval
over prompts. Methods take turns in random order, so that none is always the one after another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwise.types import Bools, Floats

NUM_RESAMPLES = 2000
Turn = tuple[int, int, list[str]]
"""Repeat, prompt, and the order in which methods answer it."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one method is than another, with its 95% bootstrap interval."""

    value: float
    low: float
    high: float
    num_prompts: int

    @property
    def ci95(self) -> tuple[float, float] | None:
        """The interval; None with a single prompt, where nothing can be drawn."""
        return (self.low, self.high) if self.num_prompts > 1 else None

    def as_json(self) -> dict[str, Any]:
        """``{"median", "ci95"}``: the ratio of medians, and its interval or None."""
        return {"median": self.value, "ci95": None if self.ci95 is None else list(self.ci95)}


def ratio(
    tokens: Floats, seconds: Floats, base_tokens: Floats, base_seconds: Floats, seed: int = 0
) -> Ratio:
    """The ratio of tokens a second, all prompts together; all arguments [P], paired by prompt.

    Prompts are drawn with replacement, the same for both methods; with one prompt there is
    nothing to draw, and no interval.

    >>> one = np.ones(4)
    >>> ratio(one, one, one, 2 * one)
    Ratio(value=2.0, low=2.0, high=2.0, num_prompts=4)
    """
    num = len(seconds)
    picks = np.random.default_rng(seed).integers(0, num, (NUM_RESAMPLES, num))
    mine = tokens[picks].sum(1) / seconds[picks].sum(1)
    theirs = base_tokens[picks].sum(1) / base_seconds[picks].sum(1)
    low, high = np.quantile(mine / theirs, [0.025, 0.975])
    value = (tokens.sum() / seconds.sum()) / (base_tokens.sum() / base_seconds.sum())
    return Ratio(float(value), float(low), float(high), num)


@dataclass(frozen=True)
class Timing:
    """seconds [methods, prompts] and num_tokens [methods, prompts] (or [prompts]): medians of the
    repeats; identical: whether every answer was the base's, token for token."""

    names: list[str]
    seconds: Floats
    num_tokens: Floats
    identical: dict[str, bool]

    def of(self, name: str) -> tuple[Floats, Floats]:
        """Tokens and seconds of one method, [P] each."""
        row = self.names.index(name)
        tokens = self.num_tokens if self.num_tokens.ndim == 1 else self.num_tokens[row]
        return tokens, self.seconds[row]

    def compare(self, name: str, base: str) -> Ratio:
        return ratio(*self.of(name), *self.of(base))

    def tok_per_s(self, name: str) -> float:
        """Tokens over seconds, all prompts together."""
        tokens, seconds = self.of(name)
        return float(tokens.sum() / seconds.sum())

    def only(self, chosen: Bools) -> Timing:
        """The same for some of the prompts; chosen: [P]."""
        tokens = self.num_tokens[..., chosen]
        return Timing(self.names, self.seconds[:, chosen], tokens, self.identical)


def turns(names: Sequence[str], num_prompts: int, repeats: int, seed: int = 0) -> Iterator[Turn]:
    """All prompts once, then all again; each time the methods in an order of its own.

    A turn's order depends on the seed and the turn alone, so a run that goes on later is the same.
    """
    for repeat in range(repeats):
        for prompt in range(num_prompts):
            order = list(names)
            random.Random(f"{seed} {repeat} {prompt}").shuffle(order)
            yield repeat, prompt, order
