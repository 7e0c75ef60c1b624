"""Many runs: all contestants on all texts of all seeds, in parallel over seeds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from draftwise.types import Plan
from draftwise_lab.sim.environments import Environment
from draftwise_lab.sim.hindsight import Totals, best_plan, fixed_path, totals
from draftwise_lab.sim.play import Contestant, Reference, Run, fold, guides_of, play
from draftwise_lab.sim.text import Text

Found = TypeVar("Found")
Progress = Callable[[int, int], None]
"""Told after each seed: which phase's (0 = hindsight, 1 = play), and seeds done."""


@dataclass(frozen=True, slots=True)
class Match:
    """All that decides the outcome: the same match gives the same bytes."""

    environment: Environment
    contestants: tuple[Contestant, ...]
    plans: tuple[Plan, ...]
    tokens: int
    with_trails: bool = False

    @property
    def longest(self) -> int:
        """The longest draft of any contestant."""
        mine = [plan.length for c in self.contestants for plan in c.plans]
        return max([*mine, *(plan.length for plan in self.plans)])

    def texts(self, seed: int) -> list[tuple[str, Text]]:
        """Every domain's texts for this seed."""
        return [
            (domain, text)
            for domain in self.environment.domains
            for text in self.environment.texts(domain, seed, self.tokens, self.longest)
        ]


Hindsight = dict[str, dict[tuple[int, str], Totals]]
"""By domain, then by seed and text: what every plan of the match takes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """runs: in the order of seeds, texts, contestants; hindsight: of ``Match.plans``."""

    runs: list[Run]
    hindsight: Hindsight


def every_plan(contestants: Sequence[Contestant], plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """All plans of a match, each once, the setting's own first."""
    return tuple(dict.fromkeys([*plans, *(plan for c in contestants for plan in c.plans)]))


def run_match(
    match: Match, seeds: Sequence[int], jobs: int = 1, progress: Progress | None = None
) -> Outcome:
    """Play everything; the outcome does not depend on ``jobs``."""
    hindsight: Hindsight = {domain: {} for domain in match.environment.domains}
    for done, found in enumerate(_map(partial(look_back, match), seeds, jobs), 1):
        for domain, more_texts in found.items():
            hindsight[domain] |= more_texts
        if progress is not None:
            progress(0, done)
    best = best_plans(match, hindsight)
    runs: list[Run] = []
    for done, more in enumerate(_map(partial(play_seed, match, best), seeds, jobs), 1):
        runs += more
        if progress is not None:
            progress(1, done)
    return Outcome(runs, hindsight)


def look_back(match: Match, seed: int) -> Hindsight:
    """What every plan takes on every text of a seed."""
    guides = guides_of(match.plans)
    costs = match.environment.costs
    found: Hindsight = {domain: {} for domain in match.environment.domains}
    for domain, text in match.texts(seed):
        found[domain][seed, text.name] = totals(text, match.plans, costs, guides)
    return found


Best = dict[tuple[str, str], tuple[Plan, Plan]]
"""By domain and contestant: its own plan with the fewest rounds, and the one with the fewest
seconds, over all texts and seeds."""


def best_plans(match: Match, hindsight: Hindsight) -> Best:
    """The plans that regret and best-plan ratio are measured against."""
    best: Best = {}
    places = {plan: index for index, plan in enumerate(match.plans)}
    for domain in match.environment.domains:
        found = list(hindsight[domain].values())
        for contestant in match.contestants:
            among = np.array([places[plan] for plan in contestant.plans])
            by_rounds = best_plan(found, by_seconds=False, among=among)
            by_seconds = best_plan(found, by_seconds=True, among=among)
            best[domain, contestant.label] = match.plans[by_rounds], match.plans[by_seconds]
    return best


def play_seed(match: Match, best: Best, seed: int) -> list[Run]:
    """Every contestant on every text of a seed."""
    runs, guides = [], guides_of(match.plans)
    for domain, text in match.texts(seed):
        for contestant in match.contestants:
            by_rounds, by_seconds = best[domain, contestant.label]
            ends, _ = fixed_path(text, by_rounds, guides)
            reference = Reference(ends, contestant.plans.index(by_seconds))
            tags: dict[str, Any] = {"seed": seed, "domain": domain}
            rows = play(
                text, contestant, match.environment.costs, reference,
                policy_seed(seed, text.name, contestant.label), tags,
                with_estimates=match.with_trails,
            )  # fmt: skip
            runs.append(fold(rows, with_trail=match.with_trails))
    return runs


def policy_seed(seed: int, text: str, label: str) -> np.random.SeedSequence:
    """A policy's own stream: no text depends on it, and no other policy shares it."""
    key = (zlib.crc32(text.encode()), zlib.crc32(label.encode()), 1)
    return np.random.SeedSequence(seed, spawn_key=key)


def _map(work: Callable[[int], Found], seeds: Sequence[int], jobs: int) -> Iterator[Found]:
    """Results in the order of the seeds, from this process or from ``jobs`` others."""
    if jobs <= 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, seeds)
