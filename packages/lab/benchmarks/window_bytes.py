"""Keys and values of rows whose layers have windows: bytes, forgetting and not.

    python -m benchmarks window_bytes --out benchmarks/results/window_bytes.json

A tiny random model of each type, with windows or chunks of 64 tokens, reads a prompt in an engine
and writes 32 tokens with drafts of 4; what the target holds then is counted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from shared.results import save
from transformers import CONFIG_MAPPING

from draftwise.nn.tiny import tiny_module, windowed
from draftwise.speculator import Speculator

TYPES = ("mistral", "gemma3_text", "gpt_oss", "llama4_text")
WINDOW, LENGTHS = 64, (50, 500, 4000)


def tiny(kind: str) -> Any:
    """A tiny random module of a type, with windows of ``WINDOW``."""
    config = windowed(CONFIG_MAPPING[kind](), WINDOW)
    config.max_position_embeddings = 8192
    return tiny_module(config)


def held(module: Any, num_tokens: int, forgets: bool) -> tuple[int, list[int]]:
    """Bytes of the target's cache at the end of a text, and the text."""
    made = Speculator.from_pretrained(module, ["lookup"], policy="fixed:1", lengths=(4,))
    assert made.target.forgets, "the self-check did not let it"
    made.target.forgets = forgets
    engine, prompt = made.engine(), [1 + place % 90 for place in range(num_tokens)]
    request = made.request(prompt, max_new_tokens=32, ignore_eos=True)
    engine.admit(request)
    while engine.has_work:
        engine.step()
    return engine.num_cache_bytes, list(request.context.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"window": WINDOW, "types": {}}
    for kind in TYPES:
        module, rows = tiny(kind), found["types"].setdefault(kind, {})
        for num in LENGTHS:
            ours, text = held(module, num, forgets=True)
            whole, same = held(module, num, forgets=False)
            rows[str(num)] = {"bytes": ours, "whole_bytes": whole, "equal": text == same}
            print(f"{kind:12} {num:5} tokens: {ours:9,} bytes, {whole:9,} without", text == same)
    save(args.out, found)


if __name__ == "__main__":
    main()
