"""When to ask: so many at a time, or as they arrive."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from draftwise.bench.load.client import Server, Shot, body_of, fire

_PARTS = 4
"""In how many parts the requests of a load are asked where loads take turns."""


@dataclass(frozen=True, slots=True)
class Load:
    """A pattern. concurrency: requests at a time; rate: arrivals a second (Poisson); one of both.

    burstiness of arrivals: 1 is Poisson; lower is burstier (gamma-distributed gaps, as vLLM's
    bench has it).
    """

    concurrency: int | None = None
    rate: float | None = None
    burstiness: float = 1.0

    def __str__(self) -> str:
        return f"{self.rate:g}/s" if self.rate is not None else f"{self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class Volley:
    """What one pattern gave."""

    load: Load
    shots: Sequence[Shot]
    took_s: float


def drive_all(
    server: Server, prompts: Sequence[str], num: int, loads: Sequence[Load],
    options: Mapping[str, Any], seed: int = 0,
) -> list[Volley]:  # fmt: skip
    """Each load ``num`` times, in parts that take turns: a server that warms up, or a machine that
    slows down, changes all loads and not the later ones alone."""
    num_parts = min(num, _PARTS) if len(loads) > 1 else 1
    ends = [num * part // num_parts for part in range(num_parts + 1)]
    parts: dict[int, list[Volley]] = {place: [] for place in range(len(loads))}
    for part, (first, last) in enumerate(pairwise(ends)):
        for place in sorted(parts, reverse=part % 2 == 1):
            asked = (last - first, loads[place], options, seed + part, first)
            parts[place].append(drive(server, prompts, *asked))
    return [
        Volley(
            load, [s for v in parts[place] for s in v.shots], sum(v.took_s for v in parts[place])
        )
        for place, load in enumerate(loads)
    ]


def drive(
    server: Server,
    prompts: Sequence[str],
    num: int,
    load: Load,
    options: Mapping[str, Any],
    seed: int = 0,
    first: int = 0,
) -> Volley:
    """Ask ``num`` times, prompts in turn from ``first`` on; returns when all have an answer or an
    error."""
    start = time.perf_counter()
    times = arrivals(num, load, seed)
    shots = [Shot((first + i) % len(prompts), start + times[i]) for i in range(num)]
    due: queue.SimpleQueue[Shot | None] = queue.SimpleQueue()
    done = threading.Semaphore(0)

    def work() -> None:
        while (shot := due.get()) is not None:
            fire(server, shot, body_of(server, prompts[shot.prompt], options))
            done.release()

    workers = load.concurrency if load.concurrency is not None else num
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, num))]
    for thread in threads:
        thread.start()
    for shot in shots:  # with a concurrency all are due at once, and workers take them in turn
        time.sleep(max(0.0, shot.wanted_s - time.perf_counter()))
        due.put(shot)
    for _ in shots:
        done.acquire()
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    return Volley(load, shots, max(shot.done_s for shot in shots) - min(s.sent_s for s in shots))


def arrivals(num: int, load: Load, seed: int) -> list[float]:
    """Seconds from the start at which each request is due.

    >>> arrivals(3, Load(concurrency=2), seed=0)
    [0.0, 0.0, 0.0]
    """
    if load.rate is None:
        return [0.0] * num
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(load.burstiness, 1 / (load.rate * load.burstiness), num)
    times: list[float] = np.cumsum(gaps).tolist()
    return [0.0, *times[:-1]]
