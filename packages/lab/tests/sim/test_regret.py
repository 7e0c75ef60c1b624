"""The theorems' bounds, and regret curves that stay inside them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwise_lab.sim import presets as tables
from draftwise_lab.sim.match import Run, Trail, make_match, run_match
from draftwise_lab.sim.presets import setting
from draftwise_lab.sim.regret import (
    best_plan_curve,
    exp3spec_bound,
    fixed_mats,
    geometric_lower_bound,
    metasd_leading_term,
    regret_curve,
    ucbspec_bound,
)


def test_ucbspec_bound_by_hand() -> None:
    """One worse plan, gap 1, mu* 2, L 2, K 2, delta 1/2, 10 tokens."""
    inside = 1 + 2 * math.log(2 * 2 * 100 / 0.5)
    expected = 0.5 * (4 + 8 * inside) + math.pi**2 / 12 + 2
    assert ucbspec_bound([2.0, 1.0], 2, 10) == pytest.approx(expected)


def test_exp3spec_bound_takes_the_smaller_of_two() -> None:
    entropy = 3 * math.log(3)
    assert exp3spec_bound(2, 3, 9, 4) == pytest.approx(4 * math.sqrt(9 * entropy))
    late = 4 * (4 * entropy + math.sqrt(100 * entropy))
    assert exp3spec_bound(2, 3, 1e6, 100) == pytest.approx(late)


def test_the_lower_bound_is_below_the_upper() -> None:
    alphas = [0.8, 0.6, 0.5, 0.4]
    mats = [tables.mean_tokens(alpha, 4) for alpha in alphas]
    for tokens in (1e2, 1e4, 1e6):
        assert 0 < geometric_lower_bound(alphas, 4, tokens) < ucbspec_bound(mats, 4, tokens)
    assert metasd_leading_term([0.5, 0.5], 4, 100) == 0.0


def test_regret_stays_inside_its_bounds_on_a_short_run() -> None:
    match = make_match(setting("geometric"), ["ucbspec", "exp3spec"], tokens=1500)
    outcome = run_match(match, range(3))
    found = list(outcome.hindsight["tgd"].values())
    mats = fixed_mats(found).tolist()
    exact = [tables.mean_tokens(alpha, 4) for alpha in (0.8, 0.6, 0.5, 0.4)]
    assert mats == pytest.approx(exact, rel=0.06)
    best = min(np.mean([t.rounds for t in found], axis=0))
    bounds = {
        "ucbspec": ucbspec_bound(mats, 4, 1500),
        "exp3spec": exp3spec_bound(4, 4, 1500, best),
    }
    for policy, bound in bounds.items():
        regrets = [run.regret for run in outcome.runs if run.policy == policy]
        assert 0 < np.mean(regrets) < bound


def run_of(positions: list[int], regrets: list[int], best: list[bool]) -> Run:
    trail = Trail(positions, regrets, best, [])
    return Run(0, "x", "t", "p", len(positions), positions[-1], 0, 0, 1.0, 0.0, 0.0, trail)


def test_curves_average_runs() -> None:
    runs = [
        run_of([2, 4], [0, 1], [True, False]),
        run_of([1, 2, 4], [1, 1, 3], [False, True, True]),
    ]
    regret = regret_curve(runs, num_points=4)
    assert regret.xs.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert regret.means.tolist() == [0.5, 0.5, 2.0, 2.0]
    assert regret.halves[2] == pytest.approx(1.96 * np.std([1, 3], ddof=1) / math.sqrt(2))
    assert best_plan_curve(runs).means.tolist() == [0.5, 0.5]
    assert regret_curve(runs[:1]).halves.tolist() == [0.0] * 4
