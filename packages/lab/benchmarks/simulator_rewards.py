"""Is block divergence the better signal? MetaSD's theorem 1, table 2 and figure 3.

    python -m benchmarks simulator_rewards --seeds 50

On ``metasd-multilingual``: mean and variance of BE (``length``) and BD (``divergence``) for every
drafter, the signal ``R = gap^2 / max(variances)`` of every worse drafter (eq. 6), and the share of
rounds that UCB1 plays the best drafter, by round. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from draftwise.registry import make_reward
from draftwise.types import Evidence, Floats, Outcome
from draftwise_lab.sim.play import guides_of
from draftwise_lab.sim.presets import setting
from draftwise_lab.sim.regret import best_plan_curve
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.run import Match, run_match
from draftwise_lab.sim.setup import make_match

REWARDS = {"BE": "length", "BD": "divergence"}
ROUNDS = (5, 10, 20, 40, 60)


def values_of(match: Match, domain: str, seeds: Sequence[int]) -> dict[str, list[Floats]]:
    """BE and BD of every round of every drafter playing alone."""
    rewards = {name: make_reward(spec) for name, spec in REWARDS.items()}
    found: dict[str, list[Floats]] = {name: [] for name in REWARDS}
    for plan in match.plans:
        seen: dict[str, list[float]] = {name: [] for name in REWARDS}
        for seed in seeds:
            [text] = match.environment.texts(domain, seed, match.tokens, match.longest)
            request = SimulatedRequest(
                text, match.plans, match.environment.costs, guides_of(match.plans)
            )
            while text.limit - request.position > plan.length:
                evidence = request.play(plan)
                for name, reward in rewards.items():
                    seen[name].append(reward(outcome_of(evidence)))
        for name, values in seen.items():
            found[name].append(np.array(values))
    return found


def outcome_of(evidence: Evidence) -> Outcome:
    """What a reward looks at, of a plan that played."""
    alphas = evidence.drafted_alphas
    return Outcome(
        evidence.plan, evidence.plan.length, alphas, alphas, alphas,
        evidence.num_drafted, evidence.num_accepted,
    )  # fmt: skip


def signals(values: Sequence[Floats]) -> list[float]:
    """R of every drafter but the best (eq. 6)."""
    means, variances = [v.mean() for v in values], [v.var() for v in values]
    best = int(np.argmax(means))
    return [
        float((means[best] - mean) ** 2 / max(variance, variances[best]))
        for index, (mean, variance) in enumerate(zip(means, variances, strict=True))
        if index != best
    ]


def main() -> None:
    """Measure, play, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    labels = [f"ucb1:beta=0.01/{spec}" for spec in REWARDS.values()]
    match = make_match(setting("metasd-multilingual"), labels, with_trails=True)
    outcome = run_match(match, range(options.seeds), options.jobs)
    table, found = Table(title="signal and best-plan ratio"), {}
    for column in ("domain", "reward", "mean (best)", "var (best)", "R of the others", *ROUNDS):
        table.add_column(str(column))
    for domain in match.environment.domains:
        values = values_of(match, domain, range(options.seeds))
        for (name, _), label in zip(REWARDS.items(), labels, strict=True):
            runs = [r for r in outcome.runs if (r.domain, r.policy) == (domain, label)]
            curve, ratios = best_plan_curve(runs).means, signals(values[name])
            best = max(values[name], key=lambda v: float(v.mean()))
            shares = [float(curve[min(n, len(curve)) - 1]) for n in ROUNDS]
            found[f"{domain} {name}"] = {"R": ratios, "best_plan_ratio": shares}
            table.add_row(
                domain, name, f"{best.mean():.3f}", f"{best.var():.3f}",
                " ".join(f"{r:.2f}" for r in ratios), *(f"{s:.2f}" for s in shares),
            )  # fmt: skip
    Console().print(table)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
