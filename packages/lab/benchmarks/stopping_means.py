"""Mean blend of each rule in the rounds it played, and in all rounds that showed it.

    python -m benchmarks stopping_means --out benchmarks/results/stopping_means.json

Rules are played at random, so the rounds they play are no selection; ``prefix:rules=true`` shows
each of them also where it would have stopped another's draft, and those rounds are one.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from shared.results import save
from shared.stopping_ways import rules_bandit
from stopping import prompts
from transformers.utils import logging


def main() -> None:
    """Play and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=4, help="of each domain")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    spec = rules_bandit("random", feedback="prefix:rules=true").speculator()
    rounds = [
        round_
        for seed, text in enumerate(prompts(args.prompts)[0])
        for round_ in spec.start(text, max_new_tokens=args.tokens, seed=seed)
    ]
    found: dict[str, Any] = {}
    table = Table("rule", "rounds played", "mean blend played", "mean blend shown", "drafted")
    for index, plan in enumerate(spec.plans):
        own = [r for r in rounds if r.plan.rule == plan.rule and r.num_drafted]
        blends = [
            r.num_accepted / 2 / plan.length + r.num_accepted / 2 / r.num_drafted for r in own
        ]
        found[plan.rule] = {
            "rounds": len(own),
            "played": round(sum(blends) / len(own), 3),
            "shown": round(float(rounds[-1].estimates[index]), 3),
            "drafted": round(sum(r.num_drafted for r in own) / len(own), 2),
        }
        table.add_row(plan.rule, *map(str, found[plan.rule].values()))
    Console().print(table)
    save(args.out, {"rules": found})


if __name__ == "__main__":
    main()
