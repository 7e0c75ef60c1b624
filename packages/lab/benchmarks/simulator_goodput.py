"""goodput against the best published policies with their length tuned in hindsight.

Every published policy plays every length of ``LENGTHS``; the best of all of them counts, chosen
for each case (a cost regime of the trace, or a preset) after the fact. The score is tokens per
second over plain decoding: seconds summed within a domain, geometric mean over domains. Intervals
are 95%, from a paired bootstrap over the texts of each domain. ``goodput`` plays as by default:
drafts mixed where the trace knows confidences, looks and catching up at their price; each text is
begun anew, without a memory of others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared.script import run, show

from draftwise.types import Floats
from draftwise_lab import sim

LENGTHS = (2, 4, 6, 8)
SKIPPING = "panoramic:every=12,warmup=6,hybrid=6"
DRAFTER_POLICIES = {
    "UCBSpec": "ucbspec@{}",
    "EXP3Spec": "exp3spec@{}",
    "MetaSD-UCB, beta 0.01": "ucb1:beta=0.01@{}",
    "UCB1, beta 0.1": "ucb1:beta=0.1@{}",
    "UCB1, beta 1": "ucb1:beta=1@{}",
    "HedgeSpec, scored every round": "normalhedge@{}/expected-length/panoramic",
    "HedgeSpec, warm-up and skips": "normalhedge@{}/expected-length/" + SKIPPING,
}
LENGTH_POLICIES = {
    "UCBSpec over lengths": "ucbspec@0-4/throughput",
    "UCB1 over lengths, beta 0.1": "ucb1:beta=0.1@0-4/throughput",
}
GOODPUT, HINDSIGHT = "goodput", "best fixed plan of each text"
FIXED = ("best fixed plan for everything", "best fixed plan of each domain", HINDSIGHT)
Seconds = dict[str, Floats]
"""Name -> seconds of every text, in one order; ``plain`` and hindsight are names too."""


def cases(options: argparse.Namespace) -> Iterator[tuple[str, sim.Setting]]:
    """The trace under three cost regimes, then the presets."""
    if options.trace:
        for regime, costs in sim.REGIMES.items():
            world = sim.Recorded(options.trace, costs)
            tokens = min(300, world.num_tokens)
            yield (
                regime,
                sim.Setting("trace", lambda _, w=world: w, tuple(range(17)), tokens=tokens),
            )
    for name in options.preset:
        chosen = sim.setting(name)
        longest = range(5) if name == "banditspec-load" else range(17)
        yield name, sim.Setting(name, chosen.make, tuple(longest), tokens=chosen.tokens)


def labels_of(name: str) -> dict[str, list[str]]:
    """The published policies of a case, each with all its lengths."""
    if name == "banditspec-load":
        return {title: [label] for title, label in LENGTH_POLICIES.items()}
    return {t: [label.format(k) for k in LENGTHS] for t, label in DRAFTER_POLICIES.items()}


def seconds_by_text(outcome: sim.Outcome) -> tuple[Seconds, NDArray[np.str_]]:
    """Seconds of each text (summed over draws of its coins), and each text's domain."""
    found = sim.sums_by_text(outcome)
    fixed = _hindsight(found.plans_s, found.plain_s, found.domains)
    return {**found.policies_s, "plain": found.plain_s, **fixed}, found.domains


def _hindsight(each: Floats, plain: Floats, domains: NDArray[np.str_]) -> Seconds:
    """Seconds of the best fixed plans: one for all, one for each domain, one for each text."""
    by_domain, everything = np.zeros(len(plain)), np.arange(len(plain))
    for domain in np.unique(domains):
        mine = domains == domain
        by_domain[mine] = each[each[:, mine].sum(axis=1).argmin(), mine]
    scores = [score(row, plain, domains, everything) for row in each]
    rows = (each[int(np.argmax(scores))], by_domain, each.min(axis=0))
    return dict(zip(FIXED, rows, strict=True))


def score(
    seconds: Floats, plain: Floats, domains: NDArray[np.str_], places: NDArray[np.int64]
) -> float:
    """Geometric mean over domains of plain seconds over seconds, on the texts ``places``."""
    names, mine, base = domains[places], seconds[places], plain[places]
    ratios = [base[names == n].sum() / mine[names == n].sum() for n in np.unique(domains)]
    return float(np.exp(np.mean(np.log(ratios))))


def compare(
    seconds: Seconds, domains: NDArray[np.str_], one: str, other: str
) -> tuple[float, float]:
    """How much faster ``one`` is than ``other``, and half the interval of that ratio."""
    rng, plain = np.random.default_rng(0), seconds["plain"]
    groups = [np.flatnonzero(domains == name) for name in np.unique(domains)]

    def ratio(places: NDArray[np.int64]) -> float:
        mine = score(seconds[one], plain, domains, places)
        return mine / score(seconds[other], plain, domains, places)

    drawn = [np.concatenate([rng.choice(g, len(g)) for g in groups]) for _ in range(400)]
    spread = np.std([ratio(places) for places in drawn], ddof=1)
    return ratio(np.arange(len(domains))), 1.96 * float(spread)


def summarise(name: str, seconds: Seconds, domains: NDArray[np.str_]) -> dict[str, Any]:
    everything, plain = np.arange(len(domains)), seconds["plain"]
    scores = {label: score(s, plain, domains, everything) for label, s in seconds.items()}
    tuned = {
        title: max((scores[label], label) for label in labels)
        for title, labels in labels_of(name).items()
    }
    best = max(tuned.values())[1]
    return {
        "case": name,
        "published": {title: {"speedup": s, "label": label} for title, (s, label) in tuned.items()},
        "best_published": best,
        "published_speedup": scores[best],
        "fixed": {label: scores[label] for label in FIXED},
        "goodput": scores[GOODPUT],
        "over_best_published": compare(seconds, domains, GOODPUT, best),
        "over_best_fixed_of_each_text": compare(seconds, domains, GOODPUT, HINDSIGHT),
        "slowest_text": float((plain / seconds[GOODPUT]).min()),
        "share_slower_than_plain": float((seconds[GOODPUT] > plain).mean()),
    }


def row_of(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "best published": f"{one['best_published']} {one['published_speedup']:.2f}",
        **one["fixed"],
        **{key: one[key] for key in ("goodput", "slowest_text", "share_slower_than_plain")},
        **{
            key: "{:.3f} ±{:.3f}".format(*one[key])
            for key in ("over_best_published", "over_best_fixed_of_each_text")
        },
    }


def compare_all(args: argparse.Namespace) -> dict[str, Any]:
    found = []
    for name, chosen in cases(args):
        labels = [label for group in labels_of(name).values() for label in group]
        match = sim.make_match(chosen, [*labels, GOODPUT])
        outcome = sim.run_match(match, range(args.seeds), args.jobs)
        found.append(summarise(name, *seconds_by_text(outcome)))
    show({one["case"]: row_of(one) for one in found})
    return {"cases": found}


if __name__ == "__main__":
    run(
        __doc__, compare_all, jobs=1, trace={"help": "the arrays of recorded traces, replay.npz"},
        preset={"action": "append", "default": []},
        seeds={"type": int, "default": 1, "help": "draws of coins (and of texts)"},
    )  # fmt: skip
