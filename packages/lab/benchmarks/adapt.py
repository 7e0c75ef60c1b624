"""Alpha of a head that keeps learning from its target's answers on one topic.

The zoo's target answers prompts of one domain at temperature 1, each once, until there are 3,000
tokens or no prompts left. Each answer is drafted first by the zoo's head and by a head that has
learnt from the answers before it; then the second head takes ``--repeats`` training steps on it.
Reports mean alphas by depth and by thousand tokens. Both heads draft the same answers, so the
difference is what learning gains.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise import Speculator, zoo
from draftwise.nn.heads.eagle import load_head
from draftwise.train.adapt import DrafterAdapter
from draftwise.train.data import Text
from draftwise.train.eagle import acceptance_by_depth


def compare(args: argparse.Namespace) -> dict[str, Any]:
    spec = Speculator.from_pretrained("zoo", [], preset="plain", seed=0)
    target = spec.target
    fixed, learner = (load_head(zoo.eagle_paths()[args.head], target) for _ in range(2))
    adapter = DrafterAdapter(
        target, learner, lr=args.lr, repeats=args.repeats, num_passes=args.depth
    )
    alphas, sizes = [], []
    for given in zoo.prompts()[args.topic]:  # never twice: the head would have memorised it
        if sum(sizes) >= args.tokens:
            break
        prompt = spec.tokenizer(given)["input_ids"]
        answer = spec.generate(prompt, max_new_tokens=200, temperature=1.0).tokens
        texts = [Text((*prompt, *answer), len(prompt))]
        alphas.append(
            [acceptance_by_depth(h, target.module, texts, args.depth) for h in (fixed, learner)]
        )
        sizes.append(len(answer))
        adapter.learn_from(prompt, answer)
        while adapter.step():
            pass
        adapter.apply()
    found, weights = np.array(alphas), np.array(sizes)
    thousand = np.minimum((weights.cumsum() - weights) // 1000, args.tokens // 1000 - 1)
    rows = []
    for part in (*sorted({*thousand.tolist()}), None):
        chosen = thousand == part if part is not None else weights > 0
        means = np.average(found[chosen], axis=0, weights=weights[chosen])
        name = "all" if part is None else f"{part},000 to {part + 1},000"
        for depth, (was, now) in enumerate(means.T.tolist(), 1):
            rows.append(
                {"tokens": name, "depth": depth, "as it was": was, "now": now, "gain": now - was}
            )
    show(rows, f"{args.head} on {args.topic}")
    return {"head": args.head, "topic": args.topic, "steps": adapter.num_steps, "rows": rows}


if __name__ == "__main__":
    run(
        __doc__, compare, tokens=3000, depth=3, lr=3e-4, repeats=4,
        head={"default": "eagle-generalist", "choices": [*zoo.eagle_paths()]},
        topic={"default": "sql", "choices": [*zoo.prompts()]},
    )  # fmt: skip
