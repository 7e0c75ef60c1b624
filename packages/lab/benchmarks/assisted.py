"""draftwise beside transformers' own assisted generation and plain decoding, on the zoo, greedy.

    python -m benchmarks assisted --part loop    # same drafter, same length: the loop itself
    python -m benchmarks assisted --part best    # the best setting of each

The second part first ranks transformers' settings (drafter x length x constant, heuristic or
confidence threshold, and prompt lookup) on a few prompts, then times the best ones, every single
drafter of draftwise at its best fixed length, and the default of draftwise, side by side.
"""

from __future__ import annotations

import argparse
import logging
from typing import Any

import numpy as np
import torch
from shared.paired import Method, measure, report
from shared.results import save

from draftwise import Speculator, zoo
from draftwise.bench.contestants import Asked, PeerContestant
from draftwise.bench.methods import Peer, parse_method

BASE = "model.generate"


def peer(base: Speculator, spec: str, num_tokens: int) -> Method:
    """One of transformers' ways to generate, on the same weights: a method of `draftwise bench`."""
    parsed = parse_method(spec)
    assert isinstance(parsed, Peer)
    contestant = PeerContestant(parsed, base, Asked(num_tokens))
    return lambda prompt: contestant.answer(prompt, 0).tokens


def ours(spec: Speculator, num_tokens: int) -> Method:
    """draftwise, whatever it was set to."""

    def run(prompt: list[int]) -> list[int]:
        return list(spec.generate(prompt, max_new_tokens=num_tokens).tokens)

    return run


def prompts_of(spec: Speculator, per_domain: int) -> list[list[int]]:
    """Held-out zoo prompts of all domains, mixed ones included."""
    texts = [text for found in zoo.prompts().values() for text in found[:per_domain]]
    return [spec.tokenizer(text)["input_ids"] for text in texts]


def fixed(drafter: str, length: int) -> Speculator:
    """One zoo drafter (or lookup) at one length."""
    spec = drafter if drafter == "lookup" else f"zoo:{drafter}"
    return Speculator.from_pretrained(
        "zoo", [spec], preset="metasd", policy="fixed:0", feedback="bandit", reward="length",
        lengths=[length],
    )  # fmt: skip


def part_loop(args: argparse.Namespace) -> dict[str, Any]:
    """Same drafter, same draft length, same tokens: only the loop differs."""
    results = {}
    base = Speculator.from_pretrained("zoo")
    for length in (3, 5, 8):
        methods: dict[str, Method] = {
            f"transformers x{length}": peer(base, f"transformers:generalistx{length}", args.tokens),
            f"draftwise x{length}": ours(fixed("generalist", length), args.tokens),
        }
        timing = measure(methods, prompts_of(base, args.prompts), args.repeats, next(iter(methods)))
        results[f"length {length}"] = report(
            timing, next(iter(methods)), f"generalist, draft length {length}"
        )
    return results


def part_best(args: argparse.Namespace) -> dict[str, Any]:
    """The best of each: others tuned in hindsight, draftwise as it is."""
    spec = Speculator.from_pretrained("zoo", preset="draftwise")
    prompts = prompts_of(spec, args.prompts)
    drafters = list(zoo.drafter_paths())
    ways = ["transformers:lookup"]
    for drafter in drafters:
        for n in (3, 5, 8, 20):
            ways += [
                f"transformers:{drafter}x{n}{way}" for way in ("", "/heuristic", "/confidence")
            ]
    settings = {way: peer(spec, way, args.tokens) for way in ways}
    ours_fixed: dict[str, Method] = {
        f"draftwise fixed {d} x{n}": ours(fixed(d, n), args.tokens)
        for d in [*drafters, "lookup"] for n in (3, 5, 8)
    }  # fmt: skip
    few = prompts_of(spec, 1)
    chosen = _fastest(settings, few, 3) | _fastest(ours_fixed, few, 3)
    methods = {
        BASE: peer(spec, "transformers", args.tokens),
        "draftwise plain": ours(Speculator.from_pretrained("zoo", preset="plain"), args.tokens),
        **chosen,
        **{
            f"draftwise {p}": ours(Speculator.from_pretrained("zoo", preset=p), args.tokens)
            for p in ("metasd", "banditspec", "hedgespec")
        },
        "draftwise": ours(spec, args.tokens),
    }
    timing = measure(methods, prompts, args.repeats, BASE)
    return {"mixed domains": report(timing, BASE, "zoo, mixed domains, greedy")}


def _fastest(methods: dict[str, Method], prompts: list[list[int]], num: int) -> dict[str, Method]:
    """The best few of many, by one quick interleaved pass."""
    timing = measure(methods, prompts, 1, next(iter(methods)))
    order = np.argsort(timing.seconds.sum(1))[:num]
    return {timing.names[i]: methods[timing.names[i]] for i in order}


def main() -> None:
    """Run one part and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=["loop", "best"], required=True)
    parser.add_argument("--prompts", type=int, default=4, help="held-out prompts a domain")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    results = part_loop(args) if args.part == "loop" else part_best(args)
    save(args.out, results)


if __name__ == "__main__":
    main()
