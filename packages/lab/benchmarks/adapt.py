"""What a head gains that goes on learning from its target's answers on one topic: alphas.

    python -m benchmarks adapt --head eagle-math --topic python
    python -m benchmarks adapt --head eagle-generalist --topic sql

The zoo's target answers prompts of one domain at temperature 1, each once, until there are 3,000
tokens or no more prompts. Each answer is first drafted on by the head as the zoo has it, and by one
that learned from the answers before; then it is learned from, ``--repeats`` steps. Mean alphas on
the answers, by depth and by thousand tokens; the same answers for both, so the gain is the head's.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shared.results import save

from draftwise import Speculator, zoo
from draftwise.nn.heads.eagle import load_head
from draftwise.train.adapt import Adapter
from draftwise.train.data import Text
from draftwise.train.eagle import acceptance_by_depth


def main() -> None:
    """Answer, compare, learn; print and save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--head", default="eagle-generalist", choices=[*zoo.eagle_paths()])
    parser.add_argument("--topic", default="sql", choices=[*zoo.prompts()])
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    spec = Speculator.from_pretrained("zoo", [], preset="plain", seed=0)
    target = spec.target
    fixed, learner = (load_head(zoo.eagle_paths()[args.head], target) for _ in range(2))
    adapter = Adapter(target, learner, lr=args.lr, repeats=args.repeats, num_passes=args.depth)
    alphas, sizes = [], []
    for given in zoo.prompts()[args.topic]:  # none twice: it would be known by heart
        if sum(sizes) >= args.tokens:
            break
        prompt = spec.tokenizer(given)["input_ids"]
        answer = spec.generate(prompt, max_new_tokens=200, temperature=1.0).tokens
        text = Text((*prompt, *answer), len(prompt))
        alphas.append(
            [
                acceptance_by_depth(head, target.module, [text], args.depth)
                for head in (fixed, learner)
            ]
        )
        sizes.append(len(answer))
        adapter.hear(prompt, answer)
        while adapter.step():
            pass
        adapter.apply()
    found, weights = np.array(alphas), np.array(sizes)
    thousand = np.minimum((weights.cumsum() - weights) // 1000, args.tokens // 1000 - 1)
    table = Table(
        "tokens", "depth", "as it was", "learning", "gain", title=f"{args.head} on {args.topic}"
    )
    rows = []
    for part in (*sorted({*thousand.tolist()}), None):
        chosen = thousand == part if part is not None else weights > 0
        means = np.average(found[chosen], axis=0, weights=weights[chosen])
        name = "all" if part is None else f"{part},000 to {part + 1},000"
        for depth, (was, now) in enumerate(means.T, 1):
            table.add_row(name, str(depth), f"{was:.3f}", f"{now:.3f}", f"{now - was:+.3f}")
            rows.append({"tokens": name, "depth": depth, "was": was, "now": now})
    Console().print(table)
    save(
        args.out, {"head": args.head, "topic": args.topic, "steps": adapter.num_steps, "rows": rows}
    )


if __name__ == "__main__":
    main()
