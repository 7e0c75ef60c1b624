"""What an acceptance head adds to a draft step: drafts of 8 that it judges and never ends.

    python -m benchmarks head_cost --out benchmarks/results/head_cost.json

SpecDec++, section 5.2 and figure 4, on the bundled pair: the same greedy answers with and without
the bundled head, taking turns; process time, so that a shared machine counts little.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo

RULES = {"none": "fixed", "head": "head:h=1", "head, with lag": "head:h=1,lag=true"}


def main() -> None:
    """Generate, take turns, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=3, help="a domain")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    ways: dict[str, Any] = {
        name: Speculator.from_pretrained(
            "zoo", ["zoo:generalist"], preset="specdecpp", lengths=[8], rules=[rule]
        )
        for name, rule in RULES.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    drafted: dict[str, list[int]] = {name: [] for name in ways}
    for own in zoo.prompts().values():
        for prompt in own[: options.prompts]:
            for name, spec in ways.items():
                start = time.process_time()
                generation = spec.start(prompt, max_new_tokens=options.tokens)
                num = sum(round_.num_drafted for round_ in generation)
                seconds[name].append(time.process_time() - start)
                drafted[name].append(num)
    assert drafted["none"] == drafted["head"] == drafted["head, with lag"], "a head ended a draft"
    steps, base = np.array(drafted["none"]), np.array(seconds["none"])
    found: dict[str, Any] = {"ms a drafted token, all of the loop": 1e3 * base.sum() / steps.sum()}
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(steps), size=(1000, len(steps)))
    for name in list(ways)[1:]:
        more = np.array(seconds[name]) - base
        spread = np.quantile(more[drawn].sum(1) / steps[drawn].sum(1), [0.025, 0.975])
        found[name] = {
            "ms more a drafted token": 1e3 * more.sum() / steps.sum(),
            "interval": (1e3 * spread).tolist(),
        }
    save(options.out, {"drafted": int(steps.sum()), "answers": len(steps), **found})


if __name__ == "__main__":
    main()
