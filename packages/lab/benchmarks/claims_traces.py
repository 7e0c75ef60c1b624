"""Claims on recorded traces: MetaSD's figures 6 and 7, HedgeSpec's tables 11 and 12.

``divergence``: is block divergence (drafts of 5 tokens) stationary along an answer? Mean and
standard deviation by tenth of the answer, and the difference between its last and its first third.

``unseen``: domains on which no drafter was trained. Each domain's specialist is excluded; policies
choose among the other five alone (table 11), or among these and the generalist (table 12), which is
the only EAGLE drafter in the paper. Length 8, MAT.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from shared.claims import played
from shared.script import rounded, run

from draftwise_lab.sim.costs import REGIMES, CostTable
from draftwise_lab.sim.match import half_width
from draftwise_lab.sim.text import Text
from draftwise_lab.sim.traces import Recorded

LENGTH, TENTHS, GENERALIST = 5, 10, "generalist"
POLICIES = ("exp3spec", "ucbspec", "normalhedge/expected-length/panoramic:per_token=true")


def divergence(args: argparse.Namespace) -> dict[str, Any]:
    with np.load(args.trace) as trace:
        alphas, temperatures = np.clip(trace["gam"].astype(float), 0.0, 1.0), trace["temp"]
    positions = alphas.shape[1] // LENGTH * LENGTH
    blocks = alphas[:, :positions].reshape(len(alphas), -1, LENGTH, alphas.shape[2]).mean(axis=2)
    found = {}
    for temperature in np.unique(temperatures):
        mine = blocks[temperatures == temperature]  # [n, blocks, drafters]
        tenths, third = np.array_split(mine, TENTHS, axis=1), mine.shape[1] // 3
        drift = mine[:, -third:].mean(axis=(1, 2)) - mine[:, :third].mean(axis=(1, 2))
        found[f"T = {temperature:g}"] = {
            "answers": len(mine), "mean": [float(t.mean()) for t in tenths],
            "sd": [float(t.std()) for t in tenths],
            "last third over first": [float(drift.mean()), half_width(drift)],
            "an answer's own drift, sd": float(drift.std(ddof=1)),
        }  # fmt: skip
    return dict(rounded(found, 3))


@dataclass(frozen=True)
class Part:
    """One domain's texts, greedy and sampled, and a subset of the drafters."""

    world: Recorded
    domain: str
    drafters: list[str]

    @property
    def domains(self) -> list[str]:
        return [name for name in self.world.domains if name.partition("@")[0] == self.domain]

    @property
    def costs(self) -> CostTable:
        return self.world.costs

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        found = self.world.texts(domain, seed, num_tokens, longest)
        return [replace(t, tracks={n: t.tracks[n] for n in self.drafters}) for t in found]


def mats(world: Recorded, domain: str, drafters: list[str], tokens: int) -> dict[str, float]:
    """MAT of each policy, and of the best of these drafters in hindsight."""
    part = Part(world, domain, drafters)
    found = played(part, list(POLICIES), 1, lengths=[8], tokens=tokens)
    names = dict.fromkeys(name for _, name in found)
    return {n: float(np.mean([found[d, n]["mat"] for d in part.domains])) for n in names}


def unseen(args: argparse.Namespace) -> dict[str, Any]:
    world = Recorded(args.trace, REGIMES["gpu"])
    experts = [d for d in world.drafters if d in {name.partition("@")[0] for name in world.domains}]
    rows: dict[str, dict[str, Any]] = {}
    for domain in experts:
        others = [name for name in experts if name != domain]
        rows[domain] = {
            "generalist": mats(world, domain, [GENERALIST], args.tokens)["best fixed plan"],
            "five specialists": mats(world, domain, others, args.tokens),
            "with the generalist": mats(world, domain, [*others, GENERALIST], args.tokens),
        }
    mean = {
        pool: {name: float(np.mean([rows[d][pool][name] for d in rows])) for name in first}
        for pool, first in rows[experts[0]].items()
        if isinstance(first, dict)
    }
    return {"mean": rounded(mean, 3), "domains": rows}


if __name__ == "__main__":
    parts = {"divergence": divergence, "unseen": unseen}
    run(__doc__, parts, trace={"required": True}, tokens=300)
