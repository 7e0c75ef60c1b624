"""goodput against the best published policies with their length tuned in hindsight.

Every published policy plays every length of ``LENGTHS``; the best of all counts, chosen in
hindsight for each case (a cost regime of the trace, or a preset). The score is tokens per second
relative to plain decoding: seconds summed within a domain, geometric mean over domains. Intervals
are 95%, from a paired bootstrap over the texts of each domain. ``goodput`` runs with its defaults:
mixed drafts where the trace has confidences, and probes and catching up at their cost; each text
starts from scratch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise.types import Floats, Ints
from draftwise_lab.sim.costs import REGIMES
from draftwise_lab.sim.match import (
    Match,
    Outcome,
    TextSums,
    averages,
    make_match,
    results,
    run_match,
    sums_by_text,
)
from draftwise_lab.sim.presets import Setting, setting
from draftwise_lab.sim.traces import trace_setting

LENGTHS = (2, 4, 6, 8)
SKIPPING = "panoramic:every=12,warmup=6,hybrid=6"
DRAFTER_POLICIES = {
    "UCBSpec": "ucbspec@{}",
    "EXP3Spec": "exp3spec@{}",
    "MetaSD-UCB, beta 0.01": "ucb1:beta=0.01@{}",
    **{f"UCB1, beta {beta}": f"ucb1:beta={beta}@{{}}" for beta in (0.1, 1)},
    "HedgeSpec, scored every round": "normalhedge@{}/expected-length/panoramic",
    "HedgeSpec, warm-up and skips": "normalhedge@{}/expected-length/" + SKIPPING,
}
LENGTH_POLICIES = {
    "UCBSpec over lengths": "ucbspec@0-4/throughput",
    "UCB1 over lengths, beta 0.1": "ucb1:beta=0.1@0-4/throughput",
}
GOODPUT = "goodput"


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Setting]]:
    """Yield the trace under three cost regimes, then the presets."""
    for regime in REGIMES if options.trace else ():
        chosen = trace_setting(Path(options.trace), regime)
        yield regime, replace(chosen, lengths=tuple(range(17)))
    for name in options.preset:
        chosen = setting(name)
        longest = range(5) if name == "banditspec-load" else range(17)
        yield name, replace(chosen, lengths=tuple(longest), rules=("fixed",))


def labels_of(name: str) -> dict[str, list[str]]:
    """The published policies of a case, each with all its lengths."""
    if name == "banditspec-load":
        return {title: [label] for title, label in LENGTH_POLICIES.items()}
    return {t: [label.format(k) for k in LENGTHS] for t, label in DRAFTER_POLICIES.items()}


def score(seconds: Floats, found: TextSums, places: Ints | slice = slice(None)) -> float:
    """Geometric mean over domains of plain seconds over the policy's, on the texts ``places``."""
    names, mine, base = found.domains[places], seconds[places], found.plain_s[places]
    ratios = [base[names == n].sum() / mine[names == n].sum() for n in np.unique(found.domains)]
    return float(np.exp(np.mean(np.log(ratios))))


def compare(found: TextSums, one: Floats, other: Floats) -> tuple[float, float]:
    """Speed of ``one`` relative to ``other``, and half the interval of that ratio."""
    rng = np.random.default_rng(0)
    groups = [np.flatnonzero(found.domains == name) for name in np.unique(found.domains)]
    drawn = [np.concatenate([rng.choice(g, len(g)) for g in groups]) for _ in range(400)]
    ratios = [score(one, found, places) / score(other, found, places) for places in drawn]
    return score(one, found) / score(other, found), 1.96 * float(np.std(ratios, ddof=1))


def summarise(name: str, match: Match, outcome: Outcome) -> dict[str, Any]:
    found, average = sums_by_text(outcome), averages(results(match, outcome))
    scores = {label: row["speedup"] for label, row in average.items()}
    tuned = {
        title: max((scores[label], label) for label in labels)
        for title, labels in labels_of(name).items()
    }
    best, own_s = max(tuned.values())[1], found.policies_s[GOODPUT]
    each_s = found.plans_s.min(axis=0)
    return {
        "case": name,
        "published": {title: {"speedup": s, "label": label} for title, (s, label) in tuned.items()},
        "best_published": best,
        "published_speedup": scores[best],
        "fixed": {
            "best fixed plan for everything": max(score(s, found) for s in found.plans_s),
            "best fixed plan of each domain": scores["best fixed plan"],
            "best fixed plan of each text": score(each_s, found),
        },
        "goodput": scores[GOODPUT],
        "over_best_published": compare(found, own_s, found.policies_s[best]),
        "over_best_fixed_of_each_text": compare(found, own_s, each_s),
        "slowest_text": float((found.plain_s / own_s).min()),
        "share_slower_than_plain": float((own_s > found.plain_s).mean()),
    }


def row_of(one: dict[str, Any]) -> dict[str, Any]:
    shares = ("goodput", "slowest_text", "share_slower_than_plain")
    ratios = ("over_best_published", "over_best_fixed_of_each_text")
    return {
        "best published": f"{one['best_published']} {one['published_speedup']:.2f}",
        **one["fixed"],
        **{key: one[key] for key in shares},
        **{key: "{:.3f} ±{:.3f}".format(*one[key]) for key in ratios},
    }


def compare_all(args: argparse.Namespace) -> dict[str, Any]:
    found = []
    for name, chosen in cases(args):
        labels = [label for group in labels_of(name).values() for label in group]
        match = make_match(chosen, [*labels, GOODPUT])
        found.append(summarise(name, match, run_match(match, range(args.seeds), args.jobs)))
    show({one["case"]: row_of(one) for one in found})
    return {"cases": found}


if __name__ == "__main__":
    run(
        __doc__, compare_all, jobs=1, trace={"help": "the arrays of recorded traces, replay.npz"},
        preset={"action": "append", "default": []},
        seeds={"type": int, "default": 1, "help": "draws of coins (and of texts)"},
    )  # fmt: skip
