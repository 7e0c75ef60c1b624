"""Metrics of drafting, for the log, and for Prometheus together with vLLM's metrics.

vLLM's engine and API server are separate processes. With ``PROMETHEUS_MULTIPROC_DIR`` (which vLLM
sets for several API servers) prometheus_client transfers the metrics. Otherwise the engine writes
them to a small file every second, which the API server reads when it is scraped.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from draftwise.controller.guard import Guard
from draftwise.integrations.vllm.options import DRAFTERS

FOLDER = "DRAFTWISE_METRICS_DIR"
"""Environment variable: folder of the metrics files, set by the process that starts engines."""
MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
MOST_LABELS = 32
"""Labels that are counted by name; requests with further labels are counted as ``other``."""


class Figure(NamedTuple):
    """One sample: name without ``draftwise:``, whether it is a counter, labels and value."""

    name: str
    is_counter: bool
    labels: Mapping[str, str]
    value: float


HELP = {
    "steps": "Steps of the engine in which requests decoded",
    "rounds": "Decoded requests, summed over steps; those without a draft included",
    "emitted_tokens": "Tokens that came out of these rounds",
    "drafted_tokens": "Drafted tokens that were verified, by drafter",
    "accepted_tokens": "Drafted tokens that were kept, by drafter",
    "label_rounds": "Rounds by label of the request",
    "label_emitted_tokens": "Tokens by label of the request",
    "label_speed": "The speed by label of the request",
    "step_seconds": "Seconds of these steps",
    "own_seconds": "Seconds that draftwise added to them",
    "speed": "Tokens a second relative to plain decoding: since the start, and recently",
    "drafting_allowed": "1 while drafts are allowed, 0 while they have cost too much",
}


@dataclass(slots=True)
class LabelCounts:
    """Counters of requests with one label. account: provides ``speed`` and ``recent_speed``."""

    rounds: int = 0
    emitted: int = 0
    account: Guard = field(default_factory=Guard)


@dataclass(slots=True)
class Counts:
    """Counters since the start; drafted and accepted are by drafter."""

    steps: int = 0
    rounds: int = 0
    emitted: int = 0
    step_s: float = 0.0
    own_s: float = 0.0
    drafted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DRAFTERS, 0))
    accepted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DRAFTERS, 0))
    labels: dict[str, LabelCounts] = field(default_factory=dict)

    def add_step(self, num_rows: int, num_emitted: int, seconds: float, own_s: float) -> None:
        self.steps += 1
        self.rounds += num_rows
        self.emitted += num_emitted
        self.step_s += seconds
        self.own_s += own_s

    def add_drafts(self, drafter: str, num_drafted: int, num_accepted: int) -> None:
        self.drafted[drafter] += num_drafted
        self.accepted[drafter] += num_accepted

    def add_label(self, label: str, num_emitted: int, seconds: float, plain_s: float) -> None:
        """Add one round of a request with a label, in a step that took ``seconds``.

        plain_s: seconds of the step without drafts; both are 0 before the cost model is known.
        """
        if label not in self.labels and len(self.labels) >= MOST_LABELS:
            label = "other"
        found = self.labels.setdefault(label, LabelCounts())
        found.rounds += 1
        found.emitted += num_emitted
        found.account.observe(num_emitted, seconds, plain_s)

    def figures(self, guard: Guard, allows_drafts: bool) -> Iterator[Figure]:
        """All samples. guard: the account of all requests. allows_drafts: see the controller."""
        yield Figure("steps", True, {}, self.steps)
        yield Figure("rounds", True, {}, self.rounds)
        yield Figure("emitted_tokens", True, {}, self.emitted)
        yield Figure("step_seconds", True, {}, self.step_s)
        yield Figure("own_seconds", True, {}, self.own_s)
        for name in DRAFTERS:
            yield Figure("drafted_tokens", True, {"drafter": name}, self.drafted[name])
            yield Figure("accepted_tokens", True, {"drafter": name}, self.accepted[name])
        for label, of_label in self.labels.items():
            yield Figure("label_rounds", True, {"label": label}, of_label.rounds)
            yield Figure("label_emitted_tokens", True, {"label": label}, of_label.emitted)
            for window, speed in _windows(of_label.account):
                yield Figure("label_speed", False, {"label": label, "window": window}, speed)
        for window, speed in _windows(guard):
            yield Figure("speed", False, {"window": window}, speed)
        yield Figure("drafting_allowed", False, {}, float(allows_drafts))


def _windows(account: Guard) -> Iterator[tuple[str, float]]:
    yield "start", account.speed
    yield "recent", account.recent_speed


def as_text(figures: Iterable[Figure], labels: Mapping[str, str]) -> str:
    """The content of a metrics file; the engine's ``labels`` are added to those of each sample."""
    return json.dumps([[f.name, f.is_counter, {**labels, **f.labels}, f.value] for f in figures])


_FAMILIES: dict[Any, dict[str, Any]] = {}  # of a registry: a process may run several engines


class Exporter:
    """Exports metrics of an engine's process. prometheus: the module prometheus_client."""

    def __init__(self, prometheus: Any) -> None:
        self._prometheus = prometheus
        self._families = _FAMILIES.setdefault(prometheus, {})
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}

    def export(self, figures: Iterable[Figure], labels: Mapping[str, str]) -> None:
        """Export the changes since the last call."""
        for name, is_counter, own, value in figures:
            all_labels = {**labels, **own}
            if name not in self._families:
                gauge = partial(self._prometheus.Gauge, multiprocess_mode="livemostrecent")
                kind = self._prometheus.Counter if is_counter else gauge
                self._families[name] = kind(f"draftwise:{name}", HELP[name], list(all_labels))
            values = tuple(all_labels.values())
            sample = self._families[name].labels(*values)
            if is_counter:
                sample.inc(value - self._told.get((name, values), 0.0))
                self._told[name, values] = value
            else:
                sample.set(value)


class Collector:
    """Reads the engines' metrics files whenever the API server is scraped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Any]:
        """Metric families of prometheus_client; missing or damaged files are skipped."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for file in sorted(self._folder.glob("*.json")):
            try:
                rows = json.loads(file.read_text("utf-8"))
            except (OSError, ValueError):
                continue
            for name, is_counter, labels, value in rows:
                kind = CounterMetricFamily if is_counter else GaugeMetricFamily
                if name not in families:
                    families[name] = kind(f"draftwise:{name}", HELP[name], labels=list(labels))
                families[name].add_metric(list(labels.values()), value)
        yield from families.values()


_opened: set[str] = set()  # folders whose collector is registered in this process


def open_folder(environment: Any, registry: Any) -> Path | None:
    """Create the folder for the metrics files, in the process that starts engines.

    None if prometheus_client transfers the metrics. Repeated calls return the same folder. A folder
    inherited from the parent process is not reused, since the parent process reads it.
    """
    if environment.get(MULTIPROC):
        return None
    if environment.get(FOLDER) in _opened:
        return Path(environment[FOLDER])
    folder = Path(tempfile.mkdtemp(prefix="draftwise-"))
    environment[FOLDER] = str(folder)
    _opened.add(str(folder))
    registry.register(Collector(folder))
    owner = os.getpid()
    atexit.register(
        lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None
    )
    return folder
