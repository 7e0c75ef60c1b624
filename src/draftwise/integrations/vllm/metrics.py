"""What is counted: by plan, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.types import Plan

NAMES = ("rounds", "drafted", "accepted", "emitted")
_HELP = {
    "rounds": "Rounds of requests, those without a draft included",
    "drafted": "Drafted tokens that were verified",
    "accepted": "Drafted tokens that were kept",
    "emitted": "Tokens that came out of these rounds",
}


@dataclass(slots=True)
class Count:
    """Of one plan: rounds, tokens drafted, accepted, emitted."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0

    def add(self, drafted: int, accepted: int, emitted: int) -> None:
        """One round of one request."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.emitted += emitted


@dataclass(slots=True)
class Pace:
    """Tokens and seconds of late: what the meter expected of steps, and what they took.

    Each step keeps 99% of what was there before it.

    >>> pace = Pace()
    >>> pace.add(tokens=4, expected_s=1.0, measured_s=2.0)
    >>> pace.estimated_tok_per_s, pace.measured_tok_per_s
    (4.0, 2.0)
    """

    tokens: float = 0.0
    expected_s: float = 0.0
    measured_s: float = 0.0

    def add(self, tokens: int, expected_s: float, measured_s: float) -> None:
        """One step."""
        self.tokens = 0.99 * self.tokens + tokens
        self.expected_s = 0.99 * self.expected_s + expected_s
        self.measured_s = 0.99 * self.measured_s + measured_s

    @property
    def estimated_tok_per_s(self) -> float:
        """Had every step lasted as long as its price."""
        return self.tokens / self.expected_s if self.expected_s else 0.0

    @property
    def measured_tok_per_s(self) -> float:
        """As the clock saw it."""
        return self.tokens / self.measured_s if self.measured_s else 0.0


class Exporter:
    """Counters beside vLLM's own, in its ``/metrics`` (with PROMETHEUS_MULTIPROC_DIR set).

    ``draftwise:rounds_total``, ``.._tokens_total`` with the labels model_name, drafter and length;
    gauges of tokens a second. State: what was exported already.
    """

    def __init__(self, model_name: str, prometheus: Any) -> None:
        """prometheus: the module ``prometheus_client``."""
        labels = ["model_name", "drafter", "length"]
        self._model = model_name
        self._counters = {
            name: prometheus.Counter(
                "draftwise:rounds" if name == "rounds" else f"draftwise:{name}_tokens",
                _HELP[name],
                labels,
            )
            for name in NAMES
        }
        self._gauges = {
            name: prometheus.Gauge(
                f"draftwise:{name}_tokens_per_second",
                f"Tokens a second of late, all requests together, {name}",
                ["model_name"],
                multiprocess_mode="livesum",
            )
            for name in ("estimated", "measured")
        }
        self._told: dict[Plan, tuple[int, ...]] = {}

    def export(self, counts: Mapping[Plan, Count], pace: Pace) -> None:
        """What has been counted since the last time."""
        for plan, count in counts.items():
            now = (count.rounds, count.drafted, count.accepted, count.emitted)
            before = self._told.get(plan, (0, 0, 0, 0))
            if now == before:
                continue
            for name, new, old in zip(NAMES, now, before, strict=True):
                labels = (self._model, plan.drafter, str(plan.length))
                self._counters[name].labels(*labels).inc(new - old)
            self._told[plan] = now
        self._gauges["estimated"].labels(self._model).set(pace.estimated_tok_per_s)
        self._gauges["measured"].labels(self._model).set(pace.measured_tok_per_s)


def new_exporter(model_name: str, prometheus: Any) -> Exporter | None:
    """One a process; a second engine in the same process counts without being exported."""
    try:
        return Exporter(model_name, prometheus)
    except ValueError:
        return None
