"""CPU time of the adapter for vLLM per step, by running requests.

    python benchmarks/vllm_overhead.py            # stubs of vLLM, and no model
    python benchmarks/vllm_overhead.py --inside   # in a real vLLM with the bundled target
    python benchmarks/vllm_overhead.py --profile  # a profile, at the most requests
    python benchmarks/vllm_overhead.py --noise    # random characters: nothing can be drafted

With stubs, each request's text consists of phrases that other requests share and of single random
tokens, so that retrieval finds matches of all lengths; a step's seconds come from the stubs' clock
(a fixed cost plus a cost per token), so choices are the same in every run. ``work`` runs while the
engine computes; the other calls are part of the step. ``p99`` is the step's 99th percentile.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from shared.script import run, show

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

if TYPE_CHECKING:  # imports numba, which vLLM on the CPU must import later
    from integrations.vllm.fakes import FakeEngine

IN_STEP, BESIDE = ("starts", "came_back", "learn", "draft"), "work"
PROMPT_TOKENS, ANSWER_TOKENS, STEPS = 2000, 400, 60
NOISE_STEPS, NUM_CHARACTERS = 380, 37


def text(rng: random.Random, phrases: list[list[int]], num_tokens: int) -> list[int]:
    """Tokens of which half are from phrases of 2 to 12 tokens and half are random."""
    found: list[int] = []
    while len(found) < num_tokens:
        found += rng.choice(phrases) if rng.random() < 0.5 else [rng.randrange(50_000)]
    return found[:num_tokens]


def engine_of(rows: int, with_drafter: bool, noise: bool) -> FakeEngine:
    """An engine with ``rows`` requests, whose texts are fixed in advance."""
    from integrations.vllm.fakes import FakeEngine, FakeRequest

    rng = random.Random(rows)
    phrases = [[rng.randrange(50_000) for _ in range(rng.randrange(2, 13))] for _ in range(24)]
    num = PROMPT_TOKENS + ANSWER_TOKENS + 40
    texts = {
        n: rng.choices(range(NUM_CHARACTERS), k=num) if noise else text(rng, phrases, num)
        for n in range(rows)
    }

    def model(tokens: Any) -> int:
        return texts[tokens[0]][len(tokens) - 1]

    def drafter(tokens: Any) -> int:
        return model(tokens) if len(tokens) % 3 else 7

    engine = FakeEngine(
        model, drafter if with_drafter else None, longest=5 if with_drafter else 16,
        cost=lambda rows, tokens, drafted: 0.05 + 0.0002 * tokens + 0.002 * drafted, chunk=1 << 20,
    )  # fmt: skip
    for number, own in texts.items():
        engine.add(FakeRequest(f"r{number}", [number, *own[:PROMPT_TOKENS]], ANSWER_TOKENS))
    return engine


class Timed:
    """CPU seconds of an adapter's methods, step by step; each ``draft`` ends a step."""

    def __init__(self, adapter: Any, profile: cProfile.Profile | None = None) -> None:
        self._spent = dict.fromkeys((*IN_STEP, BESIDE), 0.0)
        self.steps: list[tuple[int, list[float]]] = []
        self._adapter = adapter
        for name in self._spent:
            self._watch(name, profile)

    def _watch(self, name: str, profile: cProfile.Profile | None) -> None:
        method = getattr(self._adapter, name)

        def call(*args: Any) -> Any:
            with profile or nullcontext():
                start = time.thread_time()
                try:
                    return method(*args)
                finally:
                    self._spent[name] += time.thread_time() - start
                    if name == "draft":
                        self.steps.append((self._adapter.num_running, list(self._spent.values())))
                        self._spent = dict.fromkeys(self._spent, 0.0)

        setattr(self._adapter, name, call)

    def table(self, rows: int) -> dict[str, float]:
        """Median milliseconds over steps in which about ``rows`` requests decode."""
        all_ms = np.array([spent for num, spent in self.steps if num > 0.9 * rows][8:]) * 1e3
        if not len(all_ms):
            raise SystemExit(f"{rows} requests never ran together: raise VLLM_CPU_KVCACHE_SPACE")
        medians = np.median(all_ms, axis=0).round(4).tolist()
        in_step, counts = all_ms[:, : len(IN_STEP)].sum(axis=1), self._adapter.counts
        return {
            "ms": round(float(np.median(in_step)), 3),
            "mean": round(float(in_step.mean()), 3),
            "p99": round(float(np.quantile(in_step, 0.99)), 3),
            **dict(zip((*IN_STEP, BESIDE), medians, strict=True)),
            "tokens a round": round(counts.emitted / max(counts.rounds, 1), 2),
            "steps": len(all_ms),
        }


def measure(
    rows: int, with_drafter: bool, profile: cProfile.Profile | None = None, *, noise: bool = False
) -> dict[str, float]:
    engine = engine_of(rows, with_drafter, noise)
    timed = Timed(engine.adapter, profile)
    for _ in range(NOISE_STEPS if noise else STEPS):
        engine.step()
    assert len(engine.requests) == rows, "a request ended too early"
    return timed.table(rows)


def measure_inside(sizes: list[int]) -> dict[str, dict[str, float]]:
    """Measure in a real vLLM, in this process, with the maximum number of requests."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    from draftwise import zoo

    llm = LLM(
        model=str(zoo.target_path()), scheduler_cls="draftwise.integrations.vllm.Scheduler",
        additional_config={"draftwise": {"state": None}}, enforce_eager=True, dtype="float32",
        max_num_seqs=max(sizes), max_model_len=1024, enable_prefix_caching=False,
    )  # fmt: skip
    adapter = llm.llm_engine.engine_core.engine_core.scheduler.draftwise
    prompts = [prompt for kind in zoo.prompts().values() for prompt in kind]
    params = SamplingParams(temperature=0, max_tokens=600, ignore_eos=True)
    table = {}
    for rows in sizes:
        timed = Timed(adapter)
        llm.generate([prompts[i % len(prompts)] for i in range(rows)], params, use_tqdm=False)
        table[f"{rows} requests inside vLLM"] = timed.table(rows)
        for name in (*IN_STEP, BESIDE):
            delattr(adapter, name)
    return table


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    table = measure_inside(args.rows) if args.inside else {}
    for with_drafter in () if args.inside else (False,) if args.noise else (False, True):
        for rows in args.rows:
            runs = [measure(rows, with_drafter, noise=args.noise) for _ in range(args.repeats)]
            name = f"{rows} requests, {'with' if with_drafter else 'without'} a model drafter"
            table[name] = min(runs, key=lambda run: run["ms"])
    show(table)
    if args.profile:
        profile = cProfile.Profile()
        measure(max(args.rows), False, profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    return {"ms_a_step": table}


if __name__ == "__main__":
    run(
        __doc__, overhead, rows=[1, 16, 64, 256], inside=False, noise=False, profile=False,
        repeats={"type": int, "default": 3, "help": "runs, of which the fastest counts"},
    )  # fmt: skip
