"""Cost of an acceptance head per draft step: drafts of 8 tokens that it judges and never ends.

SpecDec++, section 5.2 and figure 4, on the bundled pair: the same greedy answers with and without
the bundled head, interleaved, by CPU time of the process.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import numpy as np
from shared.compare import Method, measure, zoo_texts
from shared.script import run, show

from draftwise import Speculator

RULES = {"none": "fixed", "head": "head:h=1", "head, with lag": "head:h=1,lag=true"}


def compare(args: argparse.Namespace) -> dict[str, Any]:
    prompts, drafted = zoo_texts(args.domains), {name: Counter[str]() for name in RULES}

    def method(name: str, rule: str) -> Method:
        made = Speculator.from_pretrained(
            "zoo", ["zoo:generalist"], preset="specdecpp", lengths=[8], rules=[rule]
        )

        def answer(prompt: str) -> list[int]:
            found = made.generate(prompt, max_new_tokens=args.tokens)
            drafted[name][prompt] = found.stats.num_drafted
            return list(found.tokens)

        return answer

    timing = measure({name: method(name, rule) for name, rule in RULES.items()}, prompts, "none")
    assert len({tuple(own[p] for p in prompts) for own in drafted.values()}) == 1, "a draft ended"
    steps = np.array([drafted["none"][prompt] for prompt in prompts])
    drawn = np.random.default_rng(0).integers(len(steps), size=(1000, len(steps)))
    rows: dict[str, Any] = {}
    for name in list(RULES)[1:]:
        more = timing.of(name)[1] - timing.of("none")[1]
        spread = np.quantile(more[drawn].sum(1) / steps[drawn].sum(1), [0.025, 0.975])
        value = [1e3 * x for x in (more.sum() / steps.sum(), *spread.tolist())]
        rows[name] = {"ms more a drafted token": [float(x) for x in value]}
    show(rows)
    base = 1e3 * float(timing.of("none")[1].sum() / steps.sum())
    about = {"drafted": int(steps.sum()), "answers": len(steps)}
    return {**about, "ms a drafted token, all of the loop": base, **rows}


if __name__ == "__main__":
    run(__doc__, compare, domains=3, tokens=64)
