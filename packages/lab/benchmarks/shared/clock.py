"""A clock that only forwards advance, by given costs.

Every answer is really generated; but settings differ only by what they chose, and a run is
reproducible. Retrieval, choosing and learning cost nothing (``growth.py --part overhead`` measures
them).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from draftwise import Speculator

Cost = Callable[[int, int], float]
"""Milliseconds of a forward, by rows and by tokens of each row."""
Cost2 = tuple[float, float]
"""Milliseconds of a forward, and of each of its tokens, for any number of rows."""

CLOCKS: dict[str, tuple[Cost, Cost]] = {
    "cpu": (
        lambda rows, tokens: 7.9 + 0.37 * rows + 0.205 * rows * tokens + 0.9 * (tokens > 1),
        lambda rows, tokens: 0.46 + 0.012 * rows + 0.017 * rows * tokens,
    ),
    "gpu": (
        lambda rows, tokens: max(14.0, 4.0 + 0.12 * rows * tokens) + 0.02 * rows,
        lambda rows, tokens: 0.9 + 0.002 * rows * tokens,
    ),
}
"""Target and drafter. ``cpu``: least times of the zoo on one idle thread, 1 to 50 rows of 1 to 9
tokens, fitted to 5%. ``gpu``: assumed; memory-bound up to 83 tokens, compute-bound above."""


class Priced:
    """A model whose forwards advance a clock."""

    def __init__(self, model: Any, cost: Cost, clock: list[float]) -> None:
        self._model, self._cost, self._clock = model, cost, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def extend(
        self, cache: Any, rows: Sequence[int], tokens: Any, *more: Any, **options: Any
    ) -> Any:
        packs = self._model.packs and len(rows) > 1  # then only the total number of tokens counts
        widest = max(len(fed) for fed in tokens)
        width = -(-sum(len(fed) for fed in tokens) // len(rows)) if packs else widest
        self._clock[0] += 1e-3 * self._cost(len(rows), width)
        return self._model.extend(cache, rows, tokens, *more, **options)


def put_on_clock(
    spec: Speculator, target: Cost | Cost2, drafter: Cost | Cost2
) -> Callable[[], float]:
    """From now on only forwards advance the speculator's time; its reading in seconds."""
    clock = [0.0]
    for loaded in spec.drafters:
        own: Any = loaded
        if hasattr(own, "model"):
            own.model = Priced(own.model, _cost(drafter), clock)
    model: Any = Priced(spec.target, _cost(target), clock)
    spec.target = model
    spec._pool = dataclasses.replace(spec._pool, target=model, clock=lambda: clock[0])
    return lambda: clock[0]


def _cost(given: Cost | Cost2) -> Cost:
    return (lambda _, tokens: given[0] + given[1] * tokens) if isinstance(given, tuple) else given


def on_clock(spec: Speculator, name: str) -> Callable[[], float]:
    """Put a speculator on one of ``CLOCKS``, or leave it on the machine's (``wall``); its time."""
    if name == "wall":
        return time.perf_counter
    spec._num_prefixes = 0  # prefill every prompt, repeated ones included
    return put_on_clock(spec, *CLOCKS[name])
