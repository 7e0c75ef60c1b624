"""From runs to rates, Pareto frontiers, the regression of seconds, and the gap to the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwise.types import Floats

if TYPE_CHECKING:
    from draftwise_lab.bench.sweep.runs import Run, Way

_DRAWS = 1000


@dataclass(frozen=True)
class Point:
    """One way over all prompts: the plane of figure 3, the limit on it, and measured speed."""

    way: Way
    discard_rate: float
    verification_rate: float
    draft_forward_rate: float
    oracle_rate: float
    mean_length: float
    tok_per_s: float


def point(way: Way, runs: Sequence[Run]) -> Point:
    """N_discarded / N and N_target / N (SpecDec++, section 5.1), over all tokens."""
    total = sum(run.num_tokens for run in runs)
    rounds = sum(run.num_target for run in runs)
    return Point(
        way,
        sum(run.num_discarded for run in runs) / total,
        rounds / total,
        sum(run.num_draft_forwards for run in runs) / total,
        sum(run.oracle for run in runs) / total,
        sum(run.num_drafted for run in runs) / rounds,
        total / sum(run.seconds for run in runs),
    )


def dominates(one: Point, other: Point) -> bool:
    """Whether a point is better in one rate and no worse in the other."""
    ours = (one.discard_rate, one.verification_rate)
    theirs = (other.discard_rate, other.verification_rate)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, from few verifications to many."""
    best = [p for p in points if not any(dominates(other, p) for other in points)]
    return sorted(best, key=lambda p: p.verification_rate)


def discard_at(points: Sequence[Point], verification_rate: float) -> float | None:
    """The discard rate of a frontier at a verification rate, between its points; else None."""
    rates = [p.verification_rate for p in points]
    if not rates or not rates[0] <= verification_rate <= rates[-1]:
        return None
    return float(np.interp(verification_rate, rates, [p.discard_rate for p in points]))


@dataclass(frozen=True)
class Regression:
    """Seconds as a sum of forwards: what one of each costs, and how much of the spread it explains.

    verified_s: seconds for each drafted token that the target verifies, on top of its forward; the
    paper's equation has none (0 there).
    """

    draft_s: float
    target_s: float
    verified_s: float
    r2: float

    def tok_per_s(self, p: Point) -> float:
        """Tokens a second by equation 5.1, from rates alone; forwards in vain are counted, too."""
        drafted = 1 - p.verification_rate + p.discard_rate  # N_draft + N_target = N + N_discarded
        seconds = self.draft_s * p.draft_forward_rate + self.target_s * p.verification_rate
        return 1 / (seconds + self.verified_s * drafted)


def regress(runs: Sequence[Run], with_verified: bool = False) -> Regression:
    """Least squares of seconds on draft and target forwards, without a constant.

    Source: SpecDec++, section 5.2 and equation 3.1. ``with_verified`` adds a cost for each token
    verified: on a CPU a target forward over more tokens takes longer, which 3.1 assumes away.
    """
    columns = [
        [run.num_draft_forwards for run in runs],
        [run.num_target for run in runs],
        *([[run.num_drafted for run in runs]] if with_verified else []),
    ]
    table, seconds = np.array(columns, float).T, np.array([run.seconds for run in runs])
    found, *_ = np.linalg.lstsq(table, seconds, rcond=None)
    missed = seconds - table @ found
    spread = ((seconds - seconds.mean()) ** 2).sum()
    r2 = 1 - float((missed**2).sum() / spread) if spread else 1.0
    verified = float(found[2]) if with_verified else 0.0
    return Regression(float(found[0]), float(found[1]), verified, r2)


def gain(runs: Mapping[str, Sequence[Run]], ours: str, base: str) -> tuple[float, float, float]:
    """How many times the speed of ``base`` ``ours`` has: value and 95% bootstrap interval.

    Both answered the same prompts; prompts are drawn, with all their repeats.
    """
    fast, slow = (_by_prompt(runs[name]) for name in (ours, base))
    picks = np.random.default_rng(0).integers(0, len(fast), (_DRAWS, len(fast)))
    samples = slow[picks].sum(1) / fast[picks].sum(1)
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(slow.sum() / fast.sum()), float(low), float(high)


def _by_prompt(runs: Sequence[Run]) -> Floats:
    """[prompts] seconds a token."""
    prompts = sorted({run.prompt for run in runs})
    return np.array(
        [
            sum(run.seconds for run in runs if run.prompt == prompt)
            / sum(run.num_tokens for run in runs if run.prompt == prompt)
            for prompt in prompts
        ]
    )


def as_json(p: Point) -> dict[str, Any]:
    """One point for a file."""
    return {
        "way": p.way.name,
        **p.way.about,
        "length": p.way.length,
        "rule": p.way.rule,
        "discard_rate": round(p.discard_rate, 4),
        "verification_rate": round(p.verification_rate, 4),
        "oracle_verification_rate": round(p.oracle_rate, 4),
        "mean_length": round(p.mean_length, 3),
        "tok_per_s": round(p.tok_per_s, 2),
    }
