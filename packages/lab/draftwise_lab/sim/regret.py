"""Stopping-time regret: the papers' bounds, and its growth in a match."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.types import Floats
from draftwise_lab.sim.play import Run, Totals


def ucbspec_bound(mats: Sequence[float], length: int, tokens: float, delta: float = 0.5) -> float:
    """Upper bound on the rounds that UCBSpec loses to the best plan.

    Source: BanditSpec, the last line of the proof of Theorem 4.3 (appendix D.2): sum over the worse
    plans of D/mu* (4 + 2 L^2/D^2 (1 + 2 log(L K E[ST]^2 / (D delta)))) + pi^2 delta/6 + K, D the
    gap in mean emitted tokens. Differs: E[ST] is replaced by its bound, the text's tokens (eq. 3).
    mats: [K] mean emitted tokens of each plan; plans as good as the best add nothing.

    >>> round(ucbspec_bound([2.0, 2.0], length=4, tokens=100), 6)
    2.822467
    """
    best, num = max(mats), len(mats)
    total = math.pi**2 * delta / 6.0 + num
    for mat in mats:
        gap = best - mat
        if gap > 0.0:
            inside = 1.0 + 2.0 * math.log(length * num * tokens**2 / (gap * delta))
            total += gap / best * (4.0 + 2.0 * length**2 / gap**2 * inside)
    return total


def exp3spec_bound(length: int, num_plans: int, tokens: float, best_rounds: float) -> float:
    """Upper bound on the rounds that EXP3Spec loses to the best plan.

    Source: BanditSpec, Theorem 5.3: 2 L min(sqrt(len K log K), 2 L K log K + sqrt(ST* K log K)).
    Differs: none. best_rounds: rounds of the best plan.

    >>> round(exp3spec_bound(length=1, num_plans=2, tokens=100, best_rounds=80), 6)
    23.5482
    """
    entropy = num_plans * math.log(num_plans)
    anytime = math.sqrt(tokens * entropy)
    instance = 2.0 * length * entropy + math.sqrt(best_rounds * entropy)
    return 2.0 * length * min(anytime, instance)


def geometric_lower_bound(alphas: Sequence[float], length: int, tokens: float) -> float:
    """Rounds that every consistent policy must lose in the long run under eq. (4).

    Source: BanditSpec, Proposition 4.5: H p* (1 - p*^L) / (1 - p*) log len, with the hardness
    H = sum over the worse plans of 1 / (mu* D). Differs: none; it is a limit, so a short text may
    stay below. alphas: [K] acceptance probabilities.

    >>> round(geometric_lower_bound([0.5, 0.0], length=1, tokens=math.e), 9)
    0.666666667
    """
    best = max(alphas)
    mats = [sum(alpha**j for j in range(length + 1)) for alpha in alphas]
    top = max(mats)
    hardness = math.fsum(1.0 / (top * (top - mat)) for mat in mats if mat < top)
    return hardness * sum(best**j for j in range(1, length + 1)) * math.log(tokens)


def metasd_leading_term(alphas: Sequence[float], length: int, tokens: float) -> float:
    """The part of MetaSD-UCB's bound that grows with the text.

    Source: MetaSD, Theorem 2: sum of 8 / (N_max D^2) ln B, D the gap in alpha. Differs: the
    theorem adds constants that it does not name; they are left out here.

    >>> round(metasd_leading_term([0.9, 0.4], length=4, tokens=math.e), 9)
    8.0
    """
    best = max(alphas)
    gaps = [best - alpha for alpha in alphas if alpha < best]
    return math.fsum(8.0 / (length * gap**2) for gap in gaps) * math.log(tokens)


def fixed_mats(found: Sequence[Totals]) -> Floats:
    """[K] emitted tokens per round of every plan over all texts: the means in the bounds."""
    rounds = np.sum([t.rounds for t in found], axis=0)
    mats: Floats = sum(t.tokens for t in found) / rounds
    return mats


@dataclass(frozen=True, slots=True)
class Curve:
    """A mean over runs along an axis, with half its 95% interval: xs, means, halves [G]."""

    xs: Floats
    means: Floats
    halves: Floats


def regret_curve(runs: Sequence[Run], num_points: int = 60) -> Curve:
    """Cumulative regret by tokens emitted; the runs must have trails."""
    tokens = min(run.tokens for run in runs)
    xs = np.unique(np.linspace(1, tokens, num_points).astype(np.int64)).astype(np.float64)
    rows = []
    for run in runs:
        assert run.trail is not None
        places = np.searchsorted(run.trail.positions, xs).clip(0, len(run.trail.positions) - 1)
        rows.append(np.array(run.trail.regrets, dtype=np.float64)[places])
    return _curve(xs, np.array(rows))


def best_plan_curve(runs: Sequence[Run]) -> Curve:
    """Share of rounds so far in which the best plan was played, by round."""
    num = min(run.rounds for run in runs)
    rows = []
    for run in runs:
        assert run.trail is not None
        played = np.array(run.trail.is_best[:num], dtype=np.float64)
        rows.append(played.cumsum() / np.arange(1, num + 1))
    return _curve(np.arange(1.0, num + 1), np.array(rows))


def _curve(xs: Floats, rows: Floats) -> Curve:
    num = len(rows)
    spread = rows.std(axis=0, ddof=1) if num > 1 else np.zeros(len(xs))
    return Curve(xs, rows.mean(axis=0), 1.96 * spread / math.sqrt(num))
