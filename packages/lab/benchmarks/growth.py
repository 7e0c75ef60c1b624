"""Costs outside the models: the loop, a pool that is switched off, a choice, memory by drafters."""

from __future__ import annotations

import argparse
import functools
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from shared.compare import measure, method, span, zoo_texts
from shared.script import run, show

from draftwise import Speculator
from draftwise.registry import POLICIES, make_policy
from draftwise.types import PLAIN, Feedback, Plan

PRESETS = ("plain", "metasd", "banditspec", "hedgespec", "draftwise")
POOLS = {
    "head": ["zoo:eagle-generalist"],
    "head, lookup, suffix": ["zoo:eagle-generalist", "lookup", "suffix"],
}
"""BanditSpec's table 2: its draft head alone, and its pool of several drafters."""


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Shares of a round: choosing and learning, and all Python outside the models' forwards.
    Measured in this thread's CPU time, which other programs do not affect."""
    rows = {}
    Speculator.clock = lambda _: time.thread_time()  # type: ignore[method-assign]
    for name in PRESETS:
        spec = Speculator.from_pretrained("zoo", preset=name)
        inside = _count_forwards(spec)
        own = ["choose", "commit", "learn"]
        if not spec.setting.feedback.startswith("panoramic"):  # that runs the drafters
            own.append("reveal")
        first, *prompts = zoo_texts(2)
        spec.generate(first, max_new_tokens=32)
        inside[0], start, stats = 0.0, time.thread_time(), []
        for prompt in [first, *prompts]:
            stats.append(spec.generate(prompt, max_new_tokens=args.tokens).stats)
        spent = time.thread_time() - start
        shares = sum(each.seconds_by_phase[phase] for each in stats for phase in own)
        rows[name] = {
            "ms_per_round": 1e3 * spent / sum(each.num_rounds for each in stats),
            "policy_and_bookkeeping": shares / spent,
            "outside_the_models": 1 - inside[0] / spent,
        }
    show(rows)
    return {"overhead": rows}


def _count_forwards(spec: Speculator) -> list[float]:
    """Accumulate the CPU seconds spent in any model's forward."""
    seconds = [0.0]
    models = [spec.target, *(d.model for d in spec.drafters if hasattr(d, "model"))]
    for model in models:
        forward = model.module.forward

        def timed(*args: Any, forward: Any = forward, **kwargs: Any) -> Any:
            start = time.thread_time()
            output = forward(*args, **kwargs)
            seconds[0] += time.thread_time() - start
            return output

        model.module.forward = functools.wraps(forward)(timed)
    return seconds


def off(args: argparse.Namespace) -> dict[str, Any]:
    """The default pool with ``speculation=False`` relative to an engine without drafters."""
    plain = Speculator.from_pretrained(args.target, preset="plain")
    pool = Speculator.from_pretrained(args.target)
    same = Speculator(plain.target, plain.tokenizer, pool.drafters, pool.setting)
    ways = {
        "plain": method(plain, max_new_tokens=args.tokens),
        "off": method(same, max_new_tokens=args.tokens, speculation=False),
    }
    timing = measure(ways, zoo_texts(args.prompts), "plain", args.repeats)
    row = {"off_to_plain": span(*timing.of("off"), *timing.of("plain"))}
    show([row])
    return {"texts_equal": timing.identical, **row}


def policies(_: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of ``choose`` and ``learn`` with 64 plans, by policy: medians of 60 segments.
    With bandit feedback, and with every plan observed."""
    plans = [PLAIN, *(Plan(name, length) for name in "abcdefg" for length in range(1, 10))]
    rng, everyone, rows = np.random.default_rng(0), np.ones(64, dtype=bool), {}
    for name in sorted(POLICIES):
        row = rows[name] = dict[str, float]()
        for kind in ("bandit", "all seen"):
            policy, spent = make_policy(name, 64, plans=plans), []
            for _ in range(65):
                values, start = rng.random((60, 64)), time.process_time()
                for value in values:
                    made = policy.choose()
                    seen = everyone if kind == "all seen" else np.arange(64) == made.plan
                    policy.learn(made, Feedback(value, seen))
                spent.append(1e6 * (time.process_time() - start) / 60)
            row[f"{kind}, us"] = float(np.median(spent[5:]))  # the first segments are warm-up
    show(rows)
    return {"policies": rows}


def pools(args: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of a process with one drafter, and with several; three runs each."""
    found: dict[str, list[float]] = {name: [] for name in POOLS}
    for _ in range(3):
        for name, drafters in POOLS.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as one:
                found[name].append(one.submit(peak_mb, drafters, args.tokens).result())
    alone, several = (float(np.mean(peaks)) for peaks in found.values())
    return {"peak_mb": found, "several_over_one": several / alone}


def peak_mb(drafters: list[str], tokens: int) -> float:
    spec = Speculator.from_pretrained("zoo", drafters, preset="banditspec")
    for text in zoo_texts(1):
        spec.generate(text, max_new_tokens=tokens)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    parts = {"overhead": overhead, "off": off, "policies": policies, "pools": pools}
    run(__doc__, parts, target="zoo", prompts=2, tokens=160, repeats=5)
