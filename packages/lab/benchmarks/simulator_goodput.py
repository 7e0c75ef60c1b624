"""goodput against the best published policies with their length tuned in hindsight.

    python -m benchmarks simulator_goodput --trace replay.npz --seeds 5 --jobs 2
    python -m benchmarks simulator_goodput --preset drifting --preset nonstationary --seeds 50
    python -m benchmarks record --stream test --temperature 0 --temperature 0.7 --tokens 300 \\
        --out new.npz      # answers that nothing was tuned on

Every published policy plays every length of ``LENGTHS``; the best of all of them counts, chosen
for each case (a cost regime of the trace, or a preset) after the fact. The score is tokens per
second over plain decoding: seconds summed within a domain, geometric mean over domains. Intervals
are 95%, from a paired bootstrap over the texts of each domain. ``goodput`` plays as by default:
drafts mixed where the trace knows confidences, looks and catching up at their price; each text is
begun anew, without a memory of others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from shared.results import save

from draftwise.types import Floats
from draftwise_lab.sim.costs import REGIMES
from draftwise_lab.sim.environments.recorded import Recorded
from draftwise_lab.sim.presets import Setting, setting
from draftwise_lab.sim.run import Match, Outcome, run_match
from draftwise_lab.sim.setup import make_match

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


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Setting]]:
    """The trace under three cost regimes, then the presets."""
    if options.trace:
        for regime, costs in REGIMES.items():
            world = Recorded(options.trace, costs)
            tokens = min(300, world.num_tokens)
            yield regime, Setting("trace", lambda _, w=world: w, tuple(range(17)), tokens=tokens)
    for name in options.preset:
        chosen = setting(name)
        longest = range(5) if name == "banditspec-load" else range(17)
        yield name, Setting(name, chosen.make, tuple(longest), tokens=chosen.tokens)


def labels_of(name: str) -> dict[str, list[str]]:
    """The published policies of a case, each with all its lengths."""
    if name == "banditspec-load":
        return {title: [label] for title, label in LENGTH_POLICIES.items()}
    return {t: [label.format(k) for k in LENGTHS] for t, label in DRAFTER_POLICIES.items()}


def seconds_by_text(match: Match, outcome: Outcome) -> tuple[Seconds, NDArray[np.str_]]:
    """Seconds of each text (summed over draws of its coins), and each text's domain."""
    order: dict[tuple[str, str], int] = {}
    for run in outcome.runs:
        order.setdefault((run.domain, run.text), len(order))
    seconds: Seconds = {}
    for run in outcome.runs:
        column = seconds.setdefault(run.policy, np.zeros(len(order)))
        column[order[run.domain, run.text]] += run.seconds
    plain, each = np.zeros(len(order)), np.zeros((len(match.plans), len(order)))
    for domain, found in outcome.hindsight.items():
        for (_, text), total in found.items():
            plain[order[domain, text]] += total.plain_s
            each[:, order[domain, text]] += total.seconds
    domains = np.array([domain for domain, _ in order])
    seconds["plain"] = plain
    return seconds | _hindsight(each, plain, domains), domains


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
    """One case's numbers."""
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
        "fixed": {label: scores[label] for label in FIXED},
        "goodput": scores[GOODPUT],
        "over_best_published": compare(seconds, domains, GOODPUT, best),
        "over_best_fixed_of_each_text": compare(seconds, domains, GOODPUT, HINDSIGHT),
        "slowest_text": float((plain / seconds[GOODPUT]).min()),
        "share_slower_than_plain": float((seconds[GOODPUT] > plain).mean()),
    }


def table_of(found: Sequence[dict[str, Any]]) -> Table:
    """A column a case; in brackets the length that was best."""
    table = Table(title="tokens per second over plain decoding")
    table.add_column("policy")
    for one in found:
        table.add_column(one["case"], justify="right")
    for title in [*DRAFTER_POLICIES, *LENGTH_POLICIES]:
        cells = [one["published"].get(title) for one in found]
        if any(cells):
            table.add_row(title, *(_tuned(cell) if cell else "" for cell in cells))
    for label in FIXED:
        table.add_row(label, *(f"{one['fixed'][label]:.2f}" for one in found))
    table.add_row("goodput", *(f"{one['goodput']:.2f}" for one in found))
    for key in ("over_best_published", "over_best_fixed_of_each_text"):
        table.add_row("  " + key, *(f"{one[key][0]:.3f} ±{one[key][1]:.3f}" for one in found))
    for key in ("slowest_text", "share_slower_than_plain"):
        table.add_row("  " + key, *(f"{one[key]:.2f}" for one in found))
    return table


def _tuned(cell: dict[str, Any]) -> str:
    length = cell["label"].partition("@")[2].partition("/")[0]
    return f"{cell['speedup']:.2f} ({length})"


def main() -> None:
    """Play every case and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", help="the arrays of recorded traces, replay.npz")
    parser.add_argument("--preset", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=1, help="draws of coins (and of texts)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    found = []
    for name, chosen in cases(options):
        labels = [label for group in labels_of(name).values() for label in group]
        match = make_match(chosen, [*labels, GOODPUT])
        outcome = run_match(match, range(options.seeds), options.jobs)
        found.append(summarise(name, *seconds_by_text(match, outcome)))
    Console().print(table_of(found))
    save(options.out, {"cases": found})


if __name__ == "__main__":
    main()
