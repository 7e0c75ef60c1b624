"""What probes, and learning from earlier requests, are worth at fixed costs.

Prompts of the zoo's domains in random order, one at a time, with the default pool of drafters.
Costs are fixed (``deterministic``), so runs differ by their decisions only. Speeds are relative to
plain decoding: geometric means over domains.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from typing import Any

import numpy as np
from shared.script import run, show, track

from draftwise import Speculator, zoo

WAYS = {
    "as it is": ("auto", "goodput"),
    "each request from nothing": ("request", "goodput"),
    "without probes": ("auto", "goodput:looks=false"),
    "from nothing, without probes": ("request", "goodput:looks=false"),
}
"""Scope and policy of each way."""


def speeds(args: argparse.Namespace, scope: str, policy: str) -> dict[str, float]:
    """Speed over plain decoding by domain."""
    domains = zoo.prompts()
    prompts = [
        (domain, prompt)
        for domain, own in domains.items()
        for prompt in own[args.skip : args.skip + args.domains]
    ]
    random.Random(args.seed).shuffle(prompts)
    made = Speculator.from_pretrained(
        "zoo", deterministic=True, seed=args.seed, scope=scope, policy=policy
    )
    plain_s, spent_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for number, (domain, prompt) in enumerate(track(prompts, f"{scope}, {policy}")):
        result = made.generate(
            prompt, max_new_tokens=args.tokens, temperature=args.temperature, seed=number
        )
        plain_s[domain] += result.stats.account.plain_s
        spent_s[domain] += result.stats.account.spent_s
    return {domain: plain_s[domain] / spent_s[domain] for domain in sorted(domains)}


def compare(args: argparse.Namespace) -> dict[str, Any]:
    rows = {}
    for name, way in WAYS.items():
        found = speeds(args, *way)
        rows[name] = {"mean": float(np.exp(np.mean(np.log([*found.values()])))), **found}
    show(rows, f"speed over plain decoding, T = {args.temperature:g}")
    return {"ways": rows}


if __name__ == "__main__":
    run(
        __doc__, compare, domains=4, tokens=60, temperature=0.0, seed=0,
        skip={"type": int, "default": 0, "help": "held-out prompts of each domain"},
    )  # fmt: skip
