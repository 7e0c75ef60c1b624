"""All contestants on all texts of all seeds, and their results as one JSON object."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftwise.types import Floats, Plan
from draftwise_lab.sim.environments import Environment
from draftwise_lab.sim.play import (
    Contestant,
    Reference,
    Run,
    Totals,
    best_plan,
    fixed_path,
    fold,
    guides_of,
    make_contestant,
    make_plans,
    parse_lengths,
    play,
    totals,
)
from draftwise_lab.sim.presets import Setting
from draftwise_lab.sim.text import Text

Found = TypeVar("Found")
Progress = Callable[[int, int], None]
"""Told after each seed: which phase's (0 = hindsight, 1 = play), and seeds done."""


@dataclass(frozen=True, slots=True)
class Match:
    """Everything that determines the outcome: equal matches give equal bytes."""

    environment: Environment
    contestants: tuple[Contestant, ...]
    plans: tuple[Plan, ...]
    tokens: int
    with_trails: bool = False

    @property
    def longest(self) -> int:
        mine = [plan.length for c in self.contestants for plan in c.plans]
        return max([*mine, *(plan.length for plan in self.plans)])

    def texts(self, seed: int) -> list[tuple[str, Text]]:
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


@dataclass(frozen=True, slots=True)
class TextSums:
    """Sums over all seeds for each of P texts.

    Domain, tokens, and seconds of plain decoding [P], of every plan of the match [K, P] and of
    every policy, by label [P].
    """

    domains: NDArray[np.str_]
    tokens: Floats
    plain_s: Floats
    plans_s: Floats
    policies_s: dict[str, Floats]


def sums_by_text(outcome: Outcome) -> TextSums:
    texts: dict[tuple[str, str], list[Totals]] = {}
    for domain, found in outcome.hindsight.items():
        for (_, text), total in found.items():
            texts.setdefault((domain, text), []).append(total)
    places = {key: place for place, key in enumerate(texts)}
    policies_s: dict[str, Floats] = {}
    for run in outcome.runs:
        seconds = policies_s.setdefault(run.policy, np.zeros(len(texts)))
        seconds[places[run.domain, run.text]] += run.seconds
    return TextSums(
        np.array([domain for domain, _ in texts]),
        np.array([sum(float(total.tokens) for total in own) for own in texts.values()]),
        np.array([sum(total.plain_s for total in own) for own in texts.values()]),
        np.array([np.sum([t.seconds for t in own], axis=0) for own in texts.values()]).T,
        policies_s,
    )


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
    """Rounds and seconds of every plan on every text of a seed."""
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
    """The plans that regret and best-plan ratio refer to."""
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
    """A policy's own stream, independent of texts and of other policies."""
    key = (zlib.crc32(text.encode()), zlib.crc32(label.encode()), 1)
    return np.random.SeedSequence(seed, spawn_key=key)


def _map(work: Callable[[int], Found], seeds: Sequence[int], jobs: int) -> Iterator[Found]:
    """Results in the order of the seeds, from this process or from ``jobs`` others."""
    if jobs <= 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, seeds)


def make_match(
    chosen: Setting, policies: Sequence[str] | None, *, reward: str | None = None,
    feedback: str | None = None, tokens: int | None = None, lengths: str | None = None,
    num_drafters: int | None = None, with_trails: bool = False,
) -> Match:  # fmt: skip
    """A checked match from labels and options as a user types them.

    None leaves an option to the setting, or to the policy's own paper. Errors: DraftwiseError.
    """
    environment = chosen.make(num_drafters)
    own = parse_lengths(lengths) if lengths else chosen.lengths
    labels = list(dict.fromkeys(policies or chosen.panel))
    contestants = tuple(
        make_contestant(
            label, environment.drafters, own, chosen.rules, reward=reward, feedback=feedback
        )
        for label in labels
    )
    plans = every_plan(contestants, make_plans(environment.drafters, own, chosen.rules))
    return Match(environment, contestants, plans, tokens or chosen.tokens, with_trails)


PLAIN_ROW, BEST_ROW, BEST_EACH_ROW = "plain", "best fixed plan", "best fixed plan of each text"
"""Rows that no policy played: what plans would have done in hindsight."""

Result = dict[str, Any]
"""One domain and policy, flat; the keys are documented in docs/lab/simulator.md."""


def half_width(values: Sequence[float] | Floats) -> float | None:
    """Half a 95% interval of the mean: 1.96 standard errors; None for a single value.

    >>> round(half_width([1.0, 3.0]), 9)
    1.96
    """
    if len(values) < 2:
        return None
    return 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def results(match: Match, outcome: Outcome) -> list[Result]:
    """A row for every domain and contestant, followed by the rows of hindsight."""
    rows: list[Result] = []
    for domain, found in outcome.hindsight.items():
        for contestant in match.contestants:
            mine = (domain, contestant.label)
            runs = [run for run in outcome.runs if (run.domain, run.policy) == mine]
            rows.append(_played(runs, [found[run.seed, run.text].plain_s for run in runs]))
        rows += _hindsight_rows(match, domain, list(found.values()))
    return rows


def _played(runs: Sequence[Run], plain: Sequence[float]) -> Result:
    regrets = [run.regret for run in runs]
    row = _row(
        (runs[0].domain, runs[0].policy),
        tokens=[run.tokens for run in runs],
        rounds=[run.rounds for run in runs],
        seconds=[run.seconds for run in runs],
        plain=plain,
    )
    drafted = sum(run.drafted for run in runs)
    return row | {
        "regret": float(np.mean(regrets)),
        "regret_ci95": half_width(regrets),
        "best_plan_ratio": float(np.mean([run.best_plan_ratio for run in runs])),
        "draft_acceptance_rate": sum(run.accepted for run in runs) / drafted if drafted else 0.0,
    }


def _hindsight_rows(match: Match, domain: str, found: Sequence[Totals]) -> list[Result]:
    """Plain decoding, the best plan of the domain, and the best of each text, by seconds."""
    index = best_plan(found, by_seconds=True)
    tokens, plain = [t.tokens for t in found], [t.plain_s for t in found]
    each = [int(t.seconds.argmin()) for t in found]

    def row(label: str, rounds: Sequence[float], seconds: Sequence[float]) -> Result:
        return _row((domain, label), tokens, rounds, seconds, plain)

    best = row(BEST_ROW, [t.rounds[index] for t in found], [t.seconds[index] for t in found])
    return [
        row(PLAIN_ROW, tokens, plain),
        best | {"plan": str(match.plans[index])},
        row(
            BEST_EACH_ROW,
            [t.rounds[i] for t, i in zip(found, each, strict=True)],
            [t.seconds[i] for t, i in zip(found, each, strict=True)],
        ),
    ]


def _row(
    who: tuple[str, str], tokens: Sequence[float], rounds: Sequence[float],
    seconds: Sequence[float], plain: Sequence[float],
) -> Result:  # fmt: skip
    """A row from each text's counts and seconds."""
    total_s = math.fsum(seconds)
    each_mat = np.array(tokens) / np.array(rounds)
    each_speedup = np.array(plain) / np.array(seconds)
    return {
        "domain": who[0],
        "policy": who[1],
        "num_texts": len(tokens),
        "mat": sum(tokens) / sum(rounds),
        "ci95": half_width(each_mat),
        "rounds": float(np.mean(rounds)),
        "tok_per_s": sum(tokens) / total_s,
        "speedup": math.fsum(plain) / total_s,
        "speedup_ci95": half_width(each_speedup),
        "slowest_speedup": float(each_speedup.min()),
    }


def averages(rows: Sequence[Result]) -> dict[str, Result]:
    """Over domains, by policy: means, and the geometric mean of speedups."""
    found: dict[str, Result] = {}
    for label in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == label]
        average: Result = {
            key: float(np.mean([row[key] for row in mine]))
            for key in ("mat", "rounds", "tok_per_s", "regret", "best_plan_ratio")
            if key in mine[0]
        }
        speedups = [row["speedup"] for row in mine]
        average["speedup"] = float(np.exp(np.mean(np.log(speedups))))
        average["slowest_speedup"] = min(row["slowest_speedup"] for row in mine)
        halves = [row["ci95"] for row in mine]
        is_known = None not in halves
        average["ci95"] = math.hypot(*halves) / len(mine) if is_known else None
        found[label] = average
    return found


def report(
    preset: str, match: Match, outcome: Outcome, *, num_drafters: int | None = None
) -> dict[str, Any]:
    """``{"preset", "results": [..], "average": {policy: {..}}, ..}``; see docs/lab/simulator.md."""
    rows = results(match, outcome)
    return {
        "preset": preset,
        "tokens": match.tokens,
        "num_drafters": num_drafters,
        "domains": list(match.environment.domains),
        "policies": {
            c.label: {
                "policy": c.policy,
                "reward": c.reward,
                "feedback": c.feedback,
                "num_plans": len(c.plans),
            }
            for c in match.contestants
        },
        "results": rows,
        "average": averages(rows),
    }
