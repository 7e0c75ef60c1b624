"""Trees beside chains: the same drafter and depth, on zoo prompts, in tokens a round and a second.

    python -m benchmarks trees --temperature 0
    python -m benchmarks trees --temperature 1

At a temperature above 0 the answers are different samples of one distribution, so tokens are not
compared; MAT is over all rounds of all answers.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch
from shared.paired import Method, measure, report
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo


def method(spec: Speculator, options: dict[str, Any], counts: Counter[str]) -> Method:
    """Answer a prompt, counting emitted tokens and rounds."""

    def run(prompt: list[int]) -> list[int]:
        result = spec.generate(prompt, **options)
        counts["emitted"] += result.stats.num_emitted
        counts["rounds"] += result.stats.num_rounds
        return list(result.tokens)

    return run


def main() -> None:
    """Time every shape side by side and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--drafter", default="generalist")
    parser.add_argument("--length", type=int, default=5)
    parser.add_argument("--trees", default="chain,2x8,4x8,4x16,8x32")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=3, help="held-out prompts a domain")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature, "ignore_eos": True}
    methods: dict[str, Method] = {}
    counts: dict[str, Counter[str]] = {}
    plain = Speculator.from_pretrained("zoo", preset="plain")
    shapes = {"plain": plain} | {
        tree: Speculator.from_pretrained(
            "zoo",
            [f"zoo:{args.drafter}"],
            preset="metasd",
            policy="fixed:0",
            lengths=[args.length],
            trees=[tree],
        )
        for tree in args.trees.split(",")
    }
    for name, spec in shapes.items():
        counts[name] = Counter()
        methods[name] = method(spec, options, counts[name])
    texts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
    prompts = [plain.tokenizer(text)["input_ids"] for text in texts]
    timing = measure(methods, prompts, args.repeats, "plain")
    rows = report(timing, "plain", f"{args.drafter}, depth {args.length}, T = {args.temperature}")
    for name, row in rows.items():
        row["mat"] = round(counts[name]["emitted"] / counts[name]["rounds"], 3)
    print({name: row["mat"] for name, row in rows.items()})
    save(args.out, {"trees": rows})


if __name__ == "__main__":
    main()
