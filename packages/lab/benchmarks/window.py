"""Catching up by reading everything, or by a sink and a window (MetaSD, appendix F.11).

Three questions: what does catching up on missed tokens cost (CPU time of a draft of one token,
strategies interleaved); what does the window cost in acceptance (alpha at temperature 1 along the
target's own texts, at the same tokens for every strategy); how much memory does the cache of one
long text take?
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from shared.compare import zoo_texts
from shared.script import run, show

from draftwise import Speculator, zoo
from draftwise.bench.results import ratio
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.stop_rules.thresholds import Fixed
from draftwise.types import SamplingParams

ALL = "everything"
READ = 300
"""Tokens that a drafter read before it was away."""
LONG = 2_000
"""Tokens of the text whose cache is weighed: nearly all positions of the zoo's models."""


def strategies(drafter: str, windows: list[int]) -> dict[str, str]:
    """Spec of the same model with each window, and without one, by name."""
    path = zoo.drafter_paths()[drafter]
    return {ALL: f"lm:{path}"} | {f"window {w}": f"lm:{path},window={w}" for w in windows}


def loaded(args: argparse.Namespace, **options: Any) -> Speculator:
    """The zoo's target with one drafter in all strategies."""
    specs = [f"{name}={spec}" for name, spec in strategies(args.drafter, args.windows).items()]
    return Speculator.from_pretrained("zoo", specs, policy="fixed:0", lengths=[1], **options)


def coming_back(made: Speculator, text: list[int], missed: int, repeats: int) -> dict[str, Any]:
    """Median CPU milliseconds of the first draft after ``num`` missed tokens, by strategy."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for repeat in range(repeats + 1):
        for drafter in made.drafters:
            session = drafter.start()
            context = Context(0, text[:READ], SamplingParams(), np.random.default_rng(0))
            session.open(context, READ + missed + 16)
            session.propose([DraftTask(context, 1, Fixed())])
            context.tokens = text[: READ + missed]
            session.commit([context])
            start = time.process_time()
            session.propose([DraftTask(context, 1, Fixed())])
            if repeat:  # the first is for warming up
                seconds[drafter.name].append(time.process_time() - start)
    return {name: round(1e3 * float(np.median(found)), 3) for name, found in seconds.items()}


def acceptance(args: argparse.Namespace) -> dict[str, Any]:
    """Mean alpha of each strategy at the same positions, and relative to reading everything.

    Early positions lie within the drafter's trained ones, where the smallest window omits
    something; late ones after them.
    """
    made = loaded(
        args, feedback="panoramic:per_token=true", reward="acceptance", preset="draftwise"
    )
    texts = zoo_texts(args.domains)
    seen: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    options = {"max_new_tokens": args.tokens, "temperature": 1.0, "ignore_eos": True, "seed": 0}
    for round_ in made.start(texts, **options):
        for name, scores in round_.scores.items():
            seen[name, round_.request] += enumerate(scores.alphas.tolist(), scores.start)
    bands = {"early": range(args.windows[0] + 4, args.trained), "late": range(args.trained, LONG)}
    rows: dict[str, Any] = {name: {} for name in strategies(args.drafter, args.windows)}
    for band, places in bands.items():
        sums, counts = {}, {}
        for name in rows:
            kept = [[a for at, a in seen[name, r] if at in places] for r in range(len(texts))]
            sums[name] = np.array([sum(alphas) for alphas in kept])
            counts[name] = np.array([float(len(alphas)) for alphas in kept])
        for name, row in rows.items():
            over = ratio(sums[name], counts[name], sums[ALL], counts[ALL])
            row[band] = {
                "alpha": round(float(sums[name].sum() / counts[name].sum()), 4),
                "positions": int(counts[name].sum()),
                "over_everything": round(over.value, 4),
                "ci95": [round(over.low, 4), round(over.high, 4)],
            }
    return rows


def memory(made: Speculator, text: list[int]) -> dict[str, Any]:
    """Kilobytes of each strategy's cache for a text of ``LONG`` tokens."""
    found = {}
    for drafter in made.drafters:
        assert isinstance(drafter, LMDrafter)
        session = drafter.start()
        context = Context(0, text[:LONG], SamplingParams(), np.random.default_rng(0))
        session.open(context, LONG + 16)
        session.propose([DraftTask(context, 1, Fixed())])
        found[drafter.name] = round(session._reader._cache.num_bytes / 1e3, 1)
    return found


def compare(args: argparse.Namespace) -> dict[str, Any]:
    made = loaded(args)
    text = [token for one in zoo_texts(99) for token in made.tokenizer(one)["input_ids"]]
    with torch.inference_mode():
        costs = {num: coming_back(made, text, num, args.repeats) for num in args.missed}
        sizes = memory(made, text)
    alphas = acceptance(args)
    show({
        name: {f"after {num}, ms": found[name] for num, found in costs.items()}
        | {"kB": sizes[name]}
        | {band: [own["over_everything"], *own["ci95"]] for band, own in row.items()}
        for name, row in alphas.items()
    })  # fmt: skip
    results = {"coming_back_ms": costs, "cache_kb": sizes, "acceptance": alphas}
    return {"drafter": args.drafter, "read": READ, "long": LONG, **results}


if __name__ == "__main__":
    run(
        __doc__, compare, drafter="generalist", windows=[64, 128, 256], missed=[64, 256, 1024],
        repeats=41, domains=3, tokens=600,
        trained={"type": int, "default": 256, "help": "tokens of its training texts"},
    )  # fmt: skip
