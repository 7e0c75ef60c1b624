"""Reading everything again against a sink and a window (MetaSD, appendix F.11).

    python -m benchmarks window

Three questions. What does it cost to come back after so many missed tokens: CPU time of a draft of
one token, all strategies in turn. What does the window cost in acceptance: alpha at temperature 1
along texts that the target wrote itself, where every strategy looks at the same tokens. And how
much memory does the cache of one long text take.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise.bench.paired import ratio
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
    """Name -> spec of the same model with each window, and without one."""
    path = zoo.drafter_paths()[drafter]
    return {ALL: f"lm:{path}"} | {f"window {w}": f"lm:{path},window={w}" for w in windows}


def loaded(args: argparse.Namespace, **options: Any) -> Speculator:
    """The zoo's target beside one drafter in all its strategies."""
    specs = [f"{name}={spec}" for name, spec in strategies(args.drafter, args.windows).items()]
    return Speculator.from_pretrained("zoo", specs, policy="fixed:0", lengths=[1], **options)


def coming_back(made: Speculator, text: list[int], missed: int, repeats: int) -> dict[str, Any]:
    """CPU milliseconds of the first draft after so many missed tokens, by strategy: the median."""
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
    """Mean alpha of each strategy over the same positions, and over that of reading everything.

    Early are positions within the drafter's trained ones where the smallest window leaves something
    out, late those behind them.
    """
    made = loaded(
        args, feedback="panoramic:per_token=true", reward="acceptance", preset="draftwise"
    )
    texts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
    seen: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    options = {"max_new_tokens": args.tokens, "temperature": 1.0, "ignore_eos": True, "seed": 0}
    for round_ in track(made.start(texts, **options), console=Console(stderr=True)):
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
    """Kilobytes of each strategy's cache on a text of ``LONG`` tokens."""
    found = {}
    for drafter in made.drafters:
        assert isinstance(drafter, LMDrafter)
        session = drafter.start()
        context = Context(0, text[:LONG], SamplingParams(), np.random.default_rng(0))
        session.open(context, LONG + 16)
        session.propose([DraftTask(context, 1, Fixed())])
        found[drafter.name] = round(session._reader._cache.num_bytes / 1e3, 1)
    return found


def main() -> None:
    """Measure all three and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--drafter", default="generalist", help="one of the zoo's LM drafters")
    parser.add_argument("--windows", type=lambda t: [*map(int, t.split(","))], default="64,128,256")
    parser.add_argument("--missed", type=lambda t: [*map(int, t.split(","))], default="64,256,1024")
    parser.add_argument("--repeats", type=int, default=41)
    parser.add_argument("--prompts", type=int, default=3, help="held-out prompts a domain")
    parser.add_argument("--tokens", type=int, default=600, help="tokens of each answer")
    parser.add_argument("--trained", type=int, default=256, help="tokens of its training texts")
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    made = loaded(args)
    texts = [text for found in zoo.prompts().values() for text in found]
    text = [token for one in texts for token in made.tokenizer(one)["input_ids"]]
    with torch.inference_mode():
        costs = {num: coming_back(made, text, num, args.repeats) for num in args.missed}
        sizes = memory(made, text)
    alphas = acceptance(args)
    bands = ("early", "late")
    table = Table("strategy", *[f"after {num}" for num in costs], "kB", *bands)
    for name, row in alphas.items():
        shown = [
            f"{row[band]['alpha']:.3f}: {row[band]['over_everything']:.3f} "
            f"({row[band]['ci95'][0]:.3f} to {row[band]['ci95'][1]:.3f})"
            for band in bands
        ]
        times = [f"{found[name]:.2f} ms" for found in costs.values()]
        table.add_row(name, *times, f"{sizes[name]:.0f}", *shown)
    Console().print(table)
    results = {"coming_back_ms": costs, "cache_kb": sizes, "acceptance": alphas}
    save(args.out, {"drafter": args.drafter, "read": READ, "long": LONG, **results})


if __name__ == "__main__":
    main()
