"""CPU time of the adapter for vLLM, a step, by running requests: fakes of vLLM, and no model.

python -m benchmarks vllm_overhead               # the table in docs/vllm.md
python -m benchmarks vllm_overhead --profile     # where it goes, at the most requests
Each request's text goes on by phrases that other requests use, too, and by single random tokens,
so that both retrieval drafters find matches of all lengths. A step's seconds are of the fakes'
clock (a fixed price and one for each token), so choices are the same in every run.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from shared.results import save

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from integrations.vllm.fakes import FakeEngine, FakeRequest

PARTS = ("starts", "facts", "learn", "draft")
PROMPT_TOKENS, ANSWER_TOKENS = 120, 160


def text(rng: random.Random, phrases: list[list[int]], num_tokens: int) -> list[int]:
    """Half of it phrases of 2 to 12 tokens, half of it tokens at random."""
    found: list[int] = []
    while len(found) < num_tokens:
        found += rng.choice(phrases) if rng.random() < 0.5 else [rng.randrange(50_000)]
    return found[:num_tokens]


def engine_of(rows: int, with_drafter: bool) -> FakeEngine:
    """So many requests, each with its whole text decided in advance."""
    rng = random.Random(rows)
    phrases = [[rng.randrange(50_000) for _ in range(rng.randrange(2, 13))] for _ in range(24)]
    texts = {n: text(rng, phrases, PROMPT_TOKENS + ANSWER_TOKENS + 40) for n in range(rows)}

    def model(tokens: Any) -> int:
        return texts[tokens[0]][len(tokens) - 1]

    def drafter(tokens: Any) -> int:
        return model(tokens) if len(tokens) % 3 else 7

    engine = FakeEngine(
        model, None, drafter if with_drafter else None, longest=16 if not with_drafter else 5,
        cost=lambda rows, tokens, drafted: 0.05 + 0.0002 * tokens + 0.002 * drafted, chunk=1 << 20,
    )  # fmt: skip
    for number, own in texts.items():
        prompt = [number, *own[:PROMPT_TOKENS]]
        engine.add(FakeRequest(f"r{number}", prompt, ANSWER_TOKENS))
    return engine


class Timed:
    """The CPU seconds of the pilot's parts, step by step."""

    def __init__(self, engine: FakeEngine, profile: cProfile.Profile | None = None) -> None:
        self.spent = dict.fromkeys(PARTS, 0.0)
        for name in PARTS:
            self._watch(engine.pilot, name, profile)

    def _watch(self, pilot: Any, name: str, profile: cProfile.Profile | None) -> None:
        method = getattr(pilot, name)

        def call(*args: Any) -> Any:
            if profile is not None:
                profile.enable()
            start = time.thread_time()
            try:
                return method(*args)
            finally:
                self.spent[name] += time.thread_time() - start
                if profile is not None:
                    profile.disable()

        setattr(pilot, name, call)


def measure(
    rows: int, with_drafter: bool, profile: cProfile.Profile | None = None
) -> dict[str, float]:
    """Milliseconds of CPU a step: the median of steps in which all requests decode."""
    engine = engine_of(rows, with_drafter)
    timed, steps = Timed(engine, profile), []
    for number in range(36):
        before = dict(timed.spent)
        engine.step()
        if number >= 6:
            steps.append([1e3 * (timed.spent[name] - before[name]) for name in PARTS])
    assert len(engine.requests) == rows, "a request ended too early"
    parts = dict(zip(PARTS, np.median(steps, axis=0).round(3).tolist(), strict=True))
    counts = engine.controller.counts.values()
    accepted = sum(c.accepted for c in counts) / sum(c.rounds for c in counts)
    return {"ms": round(float(np.median(np.sum(steps, axis=1))), 2), **parts, "MAT": 1 + accepted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=5, help="the least of so many runs counts")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", default=None)
    args = parser.parse_args()
    table = {}
    for with_drafter in (False, True):
        for rows in args.rows:
            runs = [measure(rows, with_drafter) for _ in range(args.repeats)]
            best = min(runs, key=lambda run: run["ms"])
            name = f"{rows} requests, {'with' if with_drafter else 'without'} a model drafter"
            table[name] = best
            print(f"{name:<42}", {key: round(value, 2) for key, value in best.items()}, flush=True)
    if args.profile:
        profile = cProfile.Profile()
        measure(max(args.rows), False, profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    if args.out:
        save(Path(args.out), {"ms_a_step": table})


if __name__ == "__main__":
    main()
