"""Runs by domain: tokens per second, MAT, ratios with intervals, losslessness; the environment.

Timing is paired and interleaved: every method answers every prompt in turn, in one process.
Machines are noisy and drift, so only ratios between methods of one run are meaningful. A ratio is
tokens over seconds, from medians of the repeats, with a bootstrap interval over prompts. The order
of methods is random for every prompt, so that no method always follows the same one.
"""

from __future__ import annotations

import os
import platform
import random
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from draftwise import __version__
from draftwise.bench.suites import PLAIN
from draftwise.files import cpu_name
from draftwise.types import Floats

FEW_PROMPTS = 10  # with fewer prompts, a bootstrap interval is reported as rough
SHORT_TOKENS = 8  # answers of fewer tokens have nothing to draft
Row = dict[str, Any]  # one method, flat; the keys are documented in docs/bench.md


@dataclass(frozen=True, slots=True)
class Run:
    """One method's answer to one item.

    item: index in the suite. tokens, seconds, cpu_s, num_rounds: by turn. emitted: tokens of every
    round, over all turns. num_drafted, num_accepted: None if unknown. written: tokens by drafter.
    """

    method: str
    repeat: int
    item: int
    domain: str
    tokens: list[list[int]]
    seconds: list[float]
    cpu_s: list[float]
    num_rounds: list[int]
    emitted: list[int]
    num_drafted: int | None = None
    num_accepted: int | None = None
    written: dict[str, int] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    def by_clock(self, clock: str) -> float:
        """Seconds of all turns: ``wall`` time, or ``cpu`` time of this process."""
        return sum(self.cpu_s if clock == "cpu" else self.seconds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one method is than another, with its 95% bootstrap interval."""

    value: float
    low: float
    high: float
    num_prompts: int

    def as_json(self) -> dict[str, Any]:
        """``{"median", "ci95"}``: the ratio, and its interval (None with a single prompt)."""
        ci95 = [self.low, self.high] if self.num_prompts > 1 else None
        return {"median": self.value, "ci95": ci95}


def ratio(
    tokens: Floats, seconds: Floats, base_tokens: Floats, base_seconds: Floats, seed: int = 0
) -> Ratio:
    """The ratio of tokens per second over all prompts; all arguments [P], paired by prompt.

    Prompts are resampled with replacement, the same ones for both methods.

    >>> one = np.ones(4)
    >>> ratio(one, one, one, 2 * one)
    Ratio(value=2.0, low=2.0, high=2.0, num_prompts=4)
    """
    num = len(seconds)
    picks = np.random.default_rng(seed).integers(0, num, (2000, num))
    mine = tokens[picks].sum(1) / seconds[picks].sum(1)
    theirs = base_tokens[picks].sum(1) / base_seconds[picks].sum(1)
    low, high = np.quantile(mine / theirs, [0.025, 0.975])
    value = (tokens.sum() / seconds.sum()) / (base_tokens.sum() / base_seconds.sum())
    return Ratio(float(value), float(low), float(high), num)


@dataclass(frozen=True)
class Timing:
    """seconds [methods, prompts] and num_tokens [methods, prompts] (or [prompts]): medians of the
    repeats; identical: whether every answer equals the base's, token for token; empty = unknown."""

    names: list[str]
    seconds: Floats
    num_tokens: Floats
    identical: dict[str, bool] = field(default_factory=dict)

    def of(self, name: str) -> tuple[Floats, Floats]:
        """Tokens and seconds of one method, [P] each."""
        row = self.names.index(name)
        tokens = self.num_tokens if self.num_tokens.ndim == 1 else self.num_tokens[row]
        return tokens, self.seconds[row]

    def compare(self, name: str, base: str) -> Ratio:
        return ratio(*self.of(name), *self.of(base))

    def tok_per_s(self, name: str) -> float:
        tokens, seconds = self.of(name)
        return float(tokens.sum() / seconds.sum())


def turns(
    names: Sequence[str], num_prompts: int, repeats: int, seed: int = 0
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield repeat, prompt, and order of the methods, which depends only on seed and turn."""
    for repeat in range(repeats):
        for prompt in range(num_prompts):
            order = list(names)
            random.Random(f"{seed} {repeat} {prompt}").shuffle(order)
            yield repeat, prompt, order


@dataclass(frozen=True, slots=True)
class Sheet:
    """Runs as arrays: seconds and tokens are medians of the repeats, by method and item."""

    timing: Timing
    domains: list[str]
    runs: Mapping[str, list[Run]]
    can_compare: bool
    clock: str

    def by_domain(self) -> dict[str, Sheet]:
        runs, names = [run for found in self.runs.values() for run in found], self.timing.names
        return {
            domain: make_sheet(
                [run for run in runs if run.domain == domain],
                names, can_compare=self.can_compare, clock=self.clock,
            )
            for domain in dict.fromkeys(self.domains)
        }  # fmt: skip


def make_sheet(
    runs: Sequence[Run], methods: Sequence[str], *, can_compare: bool, clock: str = "wall"
) -> Sheet:
    """Build arrays from complete turns. can_compare: whether answers must have equal tokens."""
    by_method = {name: [run for run in runs if run.method == name] for name in methods}
    domains = {run.item: run.domain for run in sorted(runs, key=lambda run: run.item)}
    facts: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        facts[run.method, run.item].append((run.by_clock(clock), run.num_tokens))
    medians = [[np.median(facts[name, item], axis=0) for item in domains] for name in methods]
    seconds, tokens = np.moveaxis(np.array(medians), -1, 0)
    timing = Timing(list(methods), seconds, tokens)
    return Sheet(timing, list(domains.values()), by_method, can_compare, clock)


def rows(sheet: Sheet) -> dict[str, Row]:
    """A row for each method; ``speedup`` is relative to ``plain``."""
    plain = {(run.repeat, run.item): run.tokens for run in sheet.runs[PLAIN]}
    return {name: _row(sheet, name, plain) for name in sheet.timing.names}


def _row(sheet: Sheet, name: str, plain: Mapping[tuple[int, int], list[list[int]]]) -> Row:
    runs = sheet.runs[name]
    same = sum(run.tokens == plain[run.repeat, run.item] for run in runs) / max(1, len(runs))
    tokens = sum(run.num_tokens for run in runs)
    num_rounds = sum(sum(run.num_rounds) for run in runs)
    drafted = sum(run.num_drafted or 0 for run in runs)
    is_known = any(run.num_drafted is not None for run in runs)
    accepted = sum(run.num_accepted or 0 for run in runs)
    return {
        "tok_per_s": sheet.timing.tok_per_s(name),
        "mat": tokens / num_rounds if num_rounds else 0.0,
        "speedup": sheet.timing.compare(name, PLAIN).as_json(),
        "lossless": same == 1.0 if sheet.can_compare else None,
        "same_tokens": same,
        "num_answers": len(runs),
        "num_short": sum(len(turn) < SHORT_TOKENS for run in runs for turn in run.tokens),
        "draft_acceptance_rate": accepted / max(1, drafted) if is_known else None,
        "written": dict(sum((Counter(run.written) for run in runs), Counter[str]())),
    }


def summary(sheet: Sheet) -> dict[str, Any]:
    """``methods``: a row for each, over everything; ``domains``: the same by domain."""
    parts = sheet.by_domain()
    return {
        "methods": rows(sheet),
        "domains": {domain: rows(part) for domain, part in parts.items()},
    }


def interval(ratio: Mapping[str, Any]) -> str:
    """A 95% interval as text; empty if there is none, as for plain decoding against itself.

    >>> interval({"ci95": [0.5, 1.25]}), interval({"ci95": None}), interval({"ci95": [1.0, 1.0]})
    ('0.50-1.25', '', '')
    """
    low, high = ratio["ci95"] or (0.0, 0.0)
    return f"{low:.2f}-{high:.2f}" if low < high else ""


def cautions(found: Mapping[str, Any]) -> list[str]:
    """What a reader of the results should know, also shown on the terminal and in the report."""
    num, said = found["settings"]["num_items_measured"], []
    if not found["is_complete"]:
        said.append("It ended before everything was measured.")
    if num == 1:
        said.append("With 1 prompt there is no interval: another prompt may say otherwise.")
    elif num < FEW_PROMPTS:
        why = "a bootstrap cannot see prompts that were not asked."
        said.append(f"With {num} prompts the intervals are rough: {why}")
    if short := found["methods"][PLAIN]["num_short"]:
        answers = "1 answer has" if short == 1 else f"{short} answers have"
        said.append(
            f"{answers} fewer than {SHORT_TOKENS} tokens: too short to say anything about speed. An"
            " instruct model needs its chat template (no --raw)."
        )
    return said


def extent(settings: Mapping[str, Any]) -> str:
    """The amount of measurement, as text.

    >>> extent({"num_items_measured": 2, "tokens": 64, "repeats": 1})
    'prompts: 2, tokens: at most 64, repeats: 1'
    """
    num, repeats = settings["num_items_measured"], settings["repeats"]
    return f"prompts: {num}, tokens: at most {settings['tokens']}, repeats: {repeats}"


def environment(threads: int, **more: Any) -> dict[str, Any]:
    """Machine, threads, versions and date, and ``more`` (dtype, device, commit)."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        **more,
    }


def versions() -> dict[str, str]:
    found = {"draftwise": __version__}
    for package in ("torch", "transformers", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def command() -> str:
    program, *arguments = sys.argv
    name = Path(program).name
    return shlex.join(["draftwise" if name == "__main__.py" else name, *arguments])
