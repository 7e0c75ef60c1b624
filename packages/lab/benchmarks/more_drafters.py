"""What each drafter adds: pools of them on the same prompts, in turns, in one run.

Pools: retrieval alone; with each of the drafters that are bundled for the target; with all of them.
Clock: CPU time of the process, prefill included. Ratios are to plain decoding and to retrieval
alone, of all tokens over all seconds, with 95% intervals over prompts.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from shared.compare import measure, method
from shared.script import run, show

from draftwise import Speculator
from draftwise.bench.suites import load_suite
from draftwise.real.bundled import RETRIEVAL, own_specs


def compare(args: argparse.Namespace) -> dict[str, Any]:
    own = {name: f"{name}={spec}" for name, spec in own_specs(args.target).items()}
    pools: dict[str, list[str]] = {"plain": [], "retrieval": [*RETRIEVAL]}
    pools |= {name: [*RETRIEVAL, spec] for name, spec in own.items()}
    pools["all"] = [*RETRIEVAL, *own.values()]
    made = {
        name: Speculator.from_pretrained(
            args.target, pool, preset="draftwise" if pool else "plain", dtype=args.dtype, seed=0
        )
        for name, pool in pools.items()
    }
    items = load_suite(args.suite, args.prompts).items
    asked = [[{"role": "user", "content": item.turns[0]}] for item in items]
    options = {"max_new_tokens": args.tokens, "seed": 0}
    timing = measure({name: method(m, **options) for name, m in made.items()}, asked, "plain")
    domains, rows = np.array([str(item.domain) for item in items]), []
    for name in pools:
        for domain in ("all", *dict.fromkeys(domains.tolist())):
            part = timing.only(np.isin(domains, domain) | (domain == "all"))
            to_plain, to_retrieval = (list(part.ratio(name, b)) for b in ("plain", "retrieval"))
            ratios = {"to_plain": to_plain, "to_retrieval": to_retrieval}
            rows.append({"pool": name, "category": domain, **ratios})
    show(rows)
    about = {"target": args.target, "dtype": args.dtype, "prompts": len(items)}
    return {**about, "texts_equal": timing.identical, "pools": rows}


if __name__ == "__main__":
    suite = {"required": True, "help": "as for draftwise bench"}
    run(__doc__, compare, target="smollm2", suite=suite, prompts=4, tokens=96, dtype="auto")
