"""Does the zoo's default pool gain from the EAGLE heads? The preset draftwise with and without.

python -m benchmarks eagle_pool
"""

from __future__ import annotations

import argparse

import torch
from shared.paired import Method, measure, report
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo

POOLS = {
    "plain": [],
    "default": ["zoo", "lookup"],
    "default + generalist head": ["zoo", "lookup", "zoo:eagle-generalist"],
    "default + 4 heads": ["zoo", "lookup", *(f"zoo:{name}" for name in zoo.eagle_paths())],
    "heads + lookup": [*(f"zoo:{name}" for name in zoo.eagle_paths()), "lookup"],
}


def main() -> None:
    """Time every pool side by side and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=3, help="held-out prompts a domain")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature, "ignore_eos": True}
    methods: dict[str, Method] = {}
    for name, drafters in POOLS.items():
        preset = "draftwise" if drafters else "plain"
        made = Speculator.from_pretrained("zoo", drafters, preset=preset)
        methods[name] = lambda prompt, made=made: list(made.generate(prompt, **options).tokens)
    texts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
    prompts = [made.tokenizer(text)["input_ids"] for text in texts]
    timing = measure(methods, prompts, args.repeats, "default")
    rows = report(timing, "default", f"zoo prompts of all domains, T = {args.temperature}")
    save(args.out, {"eagle_pool": rows})


if __name__ == "__main__":
    main()
