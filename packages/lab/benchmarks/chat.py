"""Ten turns of a conversation: the same tokens as ``generate``, and how soon the first one comes.

    python -m benchmarks chat --target smollm2
    python -m benchmarks chat --target smollm2 --plain     # without drafts

Each turn's messages are rendered by the tokenizer's template; transformers' own ``generate`` reads
the same text from its beginning. Clock: CPU time of the process up to the first token.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from transformers import logging

from draftwise import chat
from draftwise.speculator import Speculator

ASKED = [
    "What is a cache? Answer in two sentences.",
    "Why does one need to throw things out of it?",
    "Name three ways to choose what goes.",
    "Explain the first of them to a child.",
    "Write a short Python function that does it.",
    "Now with a limit as an argument.",
    "What happens if the limit is zero?",
    "Add a check for that.",
    "Which of the three would you use for web pages?",
    "Sum up what we said in three lines.",
]


def turns(made: Speculator, num_tokens: int) -> list[tuple[float, int, bool]]:
    """Of each turn: CPU seconds to the first token, tokens of the prompt, whether texts agree."""
    messages: list[dict[str, str]] = []
    found = []
    for asked in ASKED:
        messages.append({"role": "user", "content": asked})
        start = time.process_time()
        generation = made.start(messages, max_new_tokens=num_tokens)
        next(iter(generation))
        spent = time.process_time() - start
        for _ in generation:
            pass
        (result,) = generation.results()
        prompt = list(chat.render(messages, made.tokenizer).tokens)
        found.append((spent, len(prompt), result.tokens == _plain(made, prompt, num_tokens)))
        messages.append({"role": "assistant", "content": result.text})
    return found


def _plain(made: Speculator, prompt: list[int], num_tokens: int) -> list[int]:
    ends = chat.render([{"role": "user", "content": "x"}], made.tokenizer).turn_ends
    module: Any = made.target.module
    options = {"do_sample": False, "max_new_tokens": num_tokens, "eos_token_id": sorted(ends)}
    output = module.generate(torch.tensor([prompt]), pad_token_id=0, **options)
    return [int(token) for token in output[0, len(prompt) :]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    made = Speculator.from_pretrained(
        args.target, [] if args.plain else None, preset="plain" if args.plain else "draftwise"
    )
    for _ in made.start("warm", max_new_tokens=4):
        pass
    found = turns(made, args.tokens)
    for number, (spent, size, same) in enumerate(found, start=1):
        print(f"turn {number:2}: {size:4} tokens, first token after {spent:.3f} s, equal: {same}")
    ratio, equal = found[-1][0] / found[0][0], sum(same for _, _, same in found)
    print(f"tenth over first {ratio:.2f}; {equal} of {len(found)} texts equal")


if __name__ == "__main__":
    main()
