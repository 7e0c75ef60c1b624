"""What a choice costs: ``choose`` and ``learn`` of every policy in the table, at 64 plans.

``none`` and 7 drafters (2 of them retrieval) at 9 lengths. Feedback is of two kinds: bandit (the
played plan is seen, its drafter scored) and all seen (every plan seen, every drafter scored).
After 300 rounds of warm-up, microseconds of processor time of a round: the median over stretches of
60 rounds each, so that work done only every so many rounds counts, and the least.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise.registry import POLICIES, make_policy
from draftwise.types import PLAIN, Costs, Evidence, Feedback, Plan, Scores

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LM_DRAFTERS, RETRIEVAL = ("lm0", "lm1", "lm2", "lm3", "lm4"), ("lookup", "suffix")
PLANS = [PLAIN, *(Plan(d, k) for d in LM_DRAFTERS + RETRIEVAL for k in LENGTHS)]
STRETCH, WARMUP = 60, 300


def evidence_of(plan: Plan, rng: np.random.Generator, everyone: bool) -> Evidence:
    """A round of ``plan``, of which 3 tokens at most were accepted."""
    num_accepted = min(plan.length, int(rng.integers(4)))
    num_scored = num_accepted + 1 if everyone else min(num_accepted + 1, plan.length)
    names = LM_DRAFTERS if everyone else {plan.drafter} & set(LM_DRAFTERS)
    scores = {name: Scores(64, rng.random(num_scored), rng.random(num_scored)) for name in names}
    for name in RETRIEVAL:
        alphas, matches = rng.random(num_accepted + 1), rng.integers(0, 9, num_accepted + 1)
        scores[name] = Scores(64, alphas, alphas, matches)
    return Evidence(
        plan, plan.length, num_accepted, scores, rng.random(plan.length), 64, 0.01,
        Costs(np.linspace(0.01, 0.016, 17), dict.fromkeys(LM_DRAFTERS + RETRIEVAL, 0.0005)),
        {name: int(rng.integers(9)) for name in RETRIEVAL},
    )  # fmt: skip


def feedback_of(everyone: bool) -> list[list[Feedback]]:
    """Four feedbacks for each plan, made beforehand so that only the policy is timed."""
    rng, every = np.random.default_rng(0), np.arange(len(PLANS))
    return [
        [
            Feedback(
                rng.random(len(PLANS)),
                (every == index) | everyone,
                evidence_of(plan, rng, everyone),
            )
            for _ in range(4)
        ]
        for index, plan in enumerate(PLANS)
    ]


def spec(name: str) -> str:
    options = ",".join(f"{key}={value}" for key, value in POLICIES[name][1].items())
    return f"{name}:{options}" if options else name


def measure(args: argparse.Namespace) -> dict[str, Any]:
    seen = {"bandit": feedback_of(False), "all seen": feedback_of(True)}
    rows: dict[str, dict[str, float]] = {}
    for name in args.policies or sorted(POLICIES):
        for kind, told in seen.items():
            policy = make_policy(spec(name), len(PLANS), seed=0, plans=PLANS)
            turn, stretches = itertools.cycle(range(4)), []
            for stretch in range(args.repeats + WARMUP // STRETCH):
                start = time.process_time()
                for _ in range(STRETCH):
                    decision = policy.choose()
                    policy.learn(decision, told[decision.plan][next(turn)])
                if stretch >= WARMUP // STRETCH:
                    stretches.append(1e6 * (time.process_time() - start) / STRETCH)
            row = rows.setdefault(spec(name), {})
            row |= {f"{kind}, us": float(np.median(stretches)), f"{kind}, least": min(stretches)}
    show(rows)
    return {"policies": rows}


if __name__ == "__main__":
    run(__doc__, measure, policies=[], repeats=60)
