"""Theorems, simulated or exact: BanditSpec 4.3, 4.5, 5.3, SpecDec++ 4.2, 4.3; follow the leader."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from shared.claims import Row, played, regret_of, report

from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments import Cycles, IndependentAlphas, TruncatedGeometric
from draftwise_lab.sim.match import make_match, run_match
from draftwise_lab.sim.presets import setting
from draftwise_lab.sim.regret import (
    exp3spec_bound,
    fixed_mats,
    geometric_lower_bound,
    metasd_leading_term,
    regret_curve,
    ucbspec_bound,
)

LENGTH, COSTS = 4, CostTable({1: (1.0,)}, other_s=0.05)
ARGMAX = "ucb1:beta=1e-6/expected-length/panoramic"
"""Follow the leader: UCB1 without a bonus, with every drafter scored in every round."""
LONGER = (500, 1000, 2000, 4000, 8000)


def adversarial(seeds: int) -> list[Row]:
    """BanditSpec, theorem 5.3: rounds lost to the best plan on adversarial sequences."""
    world = setting("adversarial").make(None)
    rows = []
    for tokens in (500, 2000, 8000):
        found = played(world, ["exp3spec", "ucbspec"], seeds, lengths=[LENGTH], tokens=tokens)
        for domain in world.domains:
            exp3, best = found[domain, "exp3spec"], found[domain, "best fixed plan"]
            bound = exp3spec_bound(LENGTH, 2, tokens, best["rounds"])
            rows.append({
                "text": domain, "tokens": tokens, "best plan's rounds": best["rounds"],
                "EXP3Spec": exp3["regret"], "ci95": exp3["regret_ci95"],
                "bound (5.3)": bound, "UCBSpec": found[domain, "ucbspec"]["regret"],
            })  # fmt: skip
    return rows


def growing(seeds: int) -> list[Row]:
    """BanditSpec 4.3, 4.5, 5.3 and MetaSD 2: regret in rounds by text length, and the bounds. On
    the preset ``geometric``. A logarithm grows by equal steps from row to row."""
    labels, tokens = ("ucbspec", "exp3spec", "ucb1:beta=1/divergence", "normalhedge"), 32_000
    match = make_match(setting("geometric"), list(labels), tokens=tokens, with_trails=True)
    outcome, world = run_match(match, range(seeds)), match.environment
    assert isinstance(world, TruncatedGeometric)
    alphas = list(world.means["tgd"].values())
    mats = fixed_mats(list(outcome.hindsight["tgd"].values())).tolist()
    curves = {
        c.label: regret_curve([r for r in outcome.runs if r.policy == c.label], 4096)
        for c in match.contestants
    }
    rows = []
    for own in (tokens // 2**power for power in range(6, -1, -1)):
        row: Row = {"tokens": own}
        for label, curve in curves.items():
            index = int(np.searchsorted(curve.xs, own).clip(0, len(curve.xs) - 1))
            row[label], row[f"{label} ci95"] = float(curve.means[index]), float(curve.halves[index])
        row["ucbspec upper"] = ucbspec_bound(mats, LENGTH, own)
        row["any, lower"] = geometric_lower_bound(alphas, LENGTH, own)
        row["exp3spec upper"] = exp3spec_bound(LENGTH, len(mats), own, own / max(mats))
        row["metasd leading term"] = metasd_leading_term(alphas, LENGTH, own)
        rows.append(row)
    return rows


def argmax(seeds: int) -> list[Row]:
    """docs/lab/regret.md: follow the leader with full feedback against the default policy."""
    rows = []
    for gap in (0.2, 0.1, 0.05):
        world = IndependentAlphas({"tgd": {"a": 0.7, "b": 0.7 - gap, "c": 0.4}}, COSTS, 0.1)
        for tokens in LONGER:
            labels = [ARGMAX, "ucbspec", f"goodput@{LENGTH}"]
            found = played(world, labels, max(4, seeds), lengths=[LENGTH], tokens=tokens)
            row: Row = {"world": f"alphas .7, {0.7 - gap:.2f}, .4", "tokens": tokens}
            for name, label in zip(("argmax, all seen", "UCBSpec", "goodput"), labels, strict=True):
                row |= regret_of(found["tgd", label], name)
            rows.append(row)
    return rows


def misled(seeds: int) -> list[Row]:
    """Where follow the leader fails: two drafters that swap alphas as soon as one leads."""
    del seeds
    rows = []
    for tokens in LONGER:
        world = setting("adversarial").make(None)
        labels = [ARGMAX, "exp3spec", f"goodput@{LENGTH}"]
        found = played(world, labels, 4, lengths=[LENGTH], tokens=tokens)
        for domain in world.domains:
            row: Row = {"text": domain, "tokens": tokens}
            names = ("argmax, all seen", "EXP3Spec", "goodput")
            for name, label in zip(names, labels, strict=True):
                row[name] = found[domain, label]["regret"]
            rows.append(row)
    trap = Cycles({"trap": trap_of(1000)}, COSTS)
    for tokens in (500, 1000):
        found = played(trap, [ARGMAX, f"goodput@{LENGTH}"], 1, lengths=[LENGTH], tokens=tokens)
        rows.append({
            "text": "made for the argmax", "tokens": tokens,
            "argmax, all seen": found["trap", ARGMAX]["regret"],
            "goodput": found["trap", f"goodput@{LENGTH}"]["regret"],
        })  # fmt: skip
    return rows


def trap_of(tokens: int) -> dict[str, list[float]]:
    """Alphas that are 0 for the current leader at the next token and 1 for the other drafter."""
    sums, alphas = [0.0, 0.5], ([], [])  # type: ignore[var-annotated]
    for _ in range(tokens):
        leader = int(sums[1] > sums[0])
        for drafter in (0, 1):
            alphas[drafter].append(float(drafter != leader))
            sums[drafter] += alphas[drafter][-1]
    return dict(zip("ab", alphas, strict=True))


def immediate_costs(seeds: int) -> list[Row]:
    """SpecDec++, theorem 4.2: the MDP's costs and the seconds of every fixed length."""
    world = TruncatedGeometric({"tgd": {"a": 0.7}}, CostTable({1: (1.0,)}, other_s=0.2))
    rows = []
    for length in (1, 2, 4, 8):
        found = played(world, ["fixed:0"], seeds, lengths=[length], tokens=400)["tgd", "fixed:0"]
        rounds, tokens = found["rounds"], 400
        seconds = tokens / found["tok_per_s"]
        drafted = (seconds - rounds) / 0.2
        discarded = drafted - (tokens - rounds)
        cost = 0.2 * discarded + (1.0 - 0.2) * rounds
        rows.append({
            "length": length, "seconds": seconds, "MDP cost": cost,
            "difference": seconds - cost, "t_draft x tokens": 0.2 * tokens,
        })  # fmt: skip
    return rows


def when_to_stop(seeds: int) -> list[Row]:
    """SpecDec++, theorem 4.3, by dynamic programming with one alpha: is stopping optimal where the
    theorem's condition holds, and how much later than the optimum does the condition hold?"""
    del seeds
    pairs = itertools.product((0.5, 0.7, 0.9), (0.05, 0.2))
    return [_stops(alpha, draft_s, 1.0 - draft_s, most=12, tokens=60) for alpha, draft_s in pairs]


def _stops(alpha: float, c1: float, c2: float, most: int, tokens: int) -> Row:
    def ends(m: int) -> float:
        return alpha ** (m - 1) * (1 - alpha)

    @cache
    def value(left: int) -> float:
        return going_well(0, left) if left > 0 else 0.0

    def rejected(k: int, at: int, left: int) -> float:
        return (max(most - k, 0) + 1) * c1 + c2 + value(left - at)

    @cache
    def going_well(k: int, left: int) -> float:
        if k >= most:
            wrong = c1 + c2 + value(left - k - 1)
            return alpha * (c2 + value(left - k - 2)) + (1 - alpha) * wrong
        wrong = c1 + rejected(k + 1, k + 1, left)
        return alpha * going_well(k + 1, left) + (1 - alpha) * wrong

    def stop(k: int, left: int) -> float:
        over = sum(ends(m) * (c1 + c2 + value(left - m)) for m in range(1, k + 1))
        last = alpha * (c2 + value(left - k - 2)) + (1 - alpha) * (c1 + c2 + value(left - k - 1))
        return over + alpha**k * last

    def go_on(k: int, left: int) -> float:
        over = sum(ends(m) * (c1 + rejected(k + 1, m, left)) for m in range(1, k + 1))
        wrong = c1 + rejected(k + 1, k + 1, left)
        return over + alpha**k * (alpha * going_well(k + 1, left) + (1 - alpha) * wrong)

    def ahead(k: int, left: int) -> float:
        after = c2 + value(left - k - 3) if k + 1 >= most else going_well(k + 2, left)
        return value(left - k - 2) - after

    states = [(k, left) for k in range(most) for left in range(most + 4, tokens)]
    delta = max(0.0, *(ahead(k, left) for k, left in states))
    bar = (c2 + delta) / (c1 + c2 + delta)
    told = [(k, left) for k, left in states if 1 - alpha**k >= bar]
    right = [stop(k, left) <= go_on(k, left) + 1e-12 for k, left in told]
    mid = tokens // 2
    first = next((k for k in range(most) if stop(k, mid) <= go_on(k, mid)), most)
    return {
        "alpha": alpha, "t_draft": c1, "Delta": delta, "threshold": bar,
        "theorem says stop after": next((k for k in range(200) if 1 - alpha**k >= bar), None),
        "stopping pays after": first, "states told to stop": len(told),
        "of them right": float(np.mean(right)) if told else None,
    }  # fmt: skip


if __name__ == "__main__":
    report(__doc__, {
        "banditspec-5.3": adversarial, "growing": growing, "argmax": argmax, "misled": misled,
        "specdecpp-4.2": immediate_costs, "specdecpp-4.3": when_to_stop,
    })  # fmt: skip
