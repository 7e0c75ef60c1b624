"""What the live page draws: the last minutes, second by second, and what the policy thinks now."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwise.engine.engine import Engine
from draftwise.engine.records import Round
from draftwise.serve.worker import Observer, RequestHandle
from draftwise.types import Floats, Plan

_SECONDS = 300


@dataclass(slots=True)
class Second:
    """What one second of the engine was. Empty seconds are not kept.

    expected: what the server's own policy makes of each drafter's best plan at the end.
    """

    at: int
    tokens: Counter[str] = field(default_factory=Counter)
    pulls: Counter[str] = field(default_factory=Counter)
    busy_s: float = 0.0
    verify_s: float = 0.0
    draft_s: float = 0.0
    num_rounds: int = 0
    running: int = 0
    waiting: int = 0
    expected: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """One object for the page."""
        return {
            "at": self.at,
            "tokens": dict(self.tokens),
            "pulls": dict(self.pulls),
            "busy_s": round(self.busy_s, 6),
            "verify_s": round(self.verify_s, 6),
            "draft_s": round(self.draft_s, 6),
            "num_rounds": self.num_rounds,
            "running": self.running,
            "waiting": self.waiting,
            "expected": self.expected,
        }


class History(Observer):
    """An ``Observer`` that remembers ``_SECONDS`` seconds; read from any thread.

    plans: what the server's own policy chooses among. State: the seconds, the latest estimates.
    """

    def __init__(self, plans: Sequence[Plan], clock: Callable[[], float] = time.time) -> None:
        self._plans, self._clock, self._lock = list(plans), clock, threading.Lock()
        self._seconds: deque[Second] = deque(maxlen=_SECONDS)
        self._estimates: Floats = np.zeros(0)
        self._totals: Counter[str] = Counter()

    def saw_rounds(self, rounds: Sequence[Round], engine: Engine) -> None:
        if not rounds:
            return
        with self._lock:
            second = self._now()
            second.running, second.waiting = engine.num_running, engine.num_waiting
            seconds = rounds[0].seconds  # shared by the rows of a step
            second.busy_s += sum(seconds.values())
            second.verify_s += seconds.get("verify", 0.0)
            second.draft_s += seconds.get("draft", 0.0)
            for round_ in rounds:
                second.num_rounds += 1
                second.tokens.update(round_.sources)
                second.pulls[round_.plan.drafter] += 1
                self._totals.update(round_.sources)
            if len(rounds[-1].estimates) == len(self._plans):  # the server's own policy
                self._estimates = rounds[-1].estimates

    def saw_end(self, ticket: RequestHandle) -> None:
        with self._lock:
            self._totals["answers"] += 1

    def as_json(self, since: int) -> dict[str, Any]:
        """Seconds from ``since`` on (the last may still grow), totals, estimates by drafter."""
        with self._lock:
            self._expect()
            return {
                "now": int(self._clock()),
                "seconds": [s.as_json() for s in self._seconds if s.at >= since],
                "totals": dict(self._totals),
                "estimates": self._best(),
            }

    def _best(self) -> dict[str, dict[str, float]]:
        """For each drafter, its best plan's length and value as the policy sees it now."""
        best: dict[str, dict[str, float]] = {}
        for plan, value in zip(self._plans, self._estimates, strict=False):
            if float(value) > best.get(plan.drafter, {"value": float("-inf")})["value"]:
                best[plan.drafter] = {"length": plan.length, "value": round(float(value), 6)}
        return best

    def _expect(self) -> None:
        """Note what the policy expects now as what it did at the end of the last second."""
        if self._seconds:
            self._seconds[-1].expected = {name: b["value"] for name, b in self._best().items()}

    def _now(self) -> Second:
        at = int(self._clock())
        if not self._seconds or self._seconds[-1].at != at:
            self._expect()
            self._seconds.append(Second(at))
        return self._seconds[-1]
