"""HedgeSpec's tables 11 and 12 on recorded traces: text that no drafter of the pool has learnt.

    python -m benchmarks record --stream "test traces" --prompts 5 --tokens 300 --temperature 0 \
        --temperature 0.7 --out new.npz
    python -m benchmarks claims_unseen --trace new.npz

Of each domain its own specialist is left out: the five others choose among themselves (table 11),
or with the generalist (table 12). Length 8, MAT; the generalist alone is the paper's EAGLE.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from shared.claims import played
from shared.results import save

from draftwise_lab.sim.costs import REGIMES, CostTable
from draftwise_lab.sim.environments.recorded import Recorded
from draftwise_lab.sim.text import Text

HEDGE = "normalhedge/expected-length/panoramic:per_token=true"
POLICIES = ("exp3spec", "ucbspec", HEDGE)
GENERALIST = "generalist"


@dataclass(frozen=True)
class Part:
    """One domain's texts, greedy and sampled, and some of their drafters."""

    world: Recorded
    domain: str
    drafters: list[str]

    @property
    def domains(self) -> list[str]:
        """At each temperature."""
        return [name for name in self.world.domains if name.partition("@")[0] == self.domain]

    @property
    def costs(self) -> CostTable:
        """The world's."""
        return self.world.costs

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """The world's, without the other drafters."""
        found = self.world.texts(domain, seed, num_tokens, longest)
        return [replace(t, tracks={n: t.tracks[n] for n in self.drafters}) for t in found]


def mats(world: Recorded, domain: str, drafters: list[str], tokens: int) -> dict[str, float]:
    """Of each policy, and of the best of these drafters in hindsight."""
    part = Part(world, domain, drafters)
    found = played(part, list(POLICIES), 1, lengths=[8], tokens=tokens)
    names = dict.fromkeys(name for _, name in found)
    return {n: float(np.mean([found[d, n]["mat"] for d in part.domains])) for n in names}


def main() -> None:
    """Play each domain twice, average."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", required=True)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    world = Recorded(options.trace, REGIMES["gpu"])
    experts = [d for d in world.drafters if d in {name.partition("@")[0] for name in world.domains}]
    rows: dict[str, dict[str, Any]] = {}
    for domain in experts:
        others = [name for name in experts if name != domain]
        rows[domain] = {
            "generalist": mats(world, domain, [GENERALIST], options.tokens)["best fixed plan"],
            "five specialists": mats(world, domain, others, options.tokens),
            "with the generalist": mats(world, domain, [*others, GENERALIST], options.tokens),
        }
    pools = ("five specialists", "with the generalist")
    mean = {
        pool: {name: round(float(np.mean([rows[d][pool][name] for d in rows])), 3)
               for name in rows[experts[0]][pool]}
        for pool in pools
    }  # fmt: skip
    save(options.out, {"mean": mean, "domains": rows})


if __name__ == "__main__":
    main()
