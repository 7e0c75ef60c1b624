"""Reading everything again against a sink and a window (MetaSD, appendix F.11).

    python benchmarks/window.py

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
from paired import save
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise.bench.paired import ratio
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.guides.fixed import Fixed
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
            session = drafter.start(1, READ + missed + 16)
            context = Context(0, text[:READ], SamplingParams(), np.random.default_rng(0))
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

    Only positions where every window leaves something out count.
    """
    made = loaded(
        args, feedback="panoramic:per_token=true", reward="acceptance", preset="draftwise"
    )
    first = max(args.windows) + 4
    texts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    nums: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    options = {"max_new_tokens": args.tokens, "temperature": 1.0, "ignore_eos": True, "seed": 0}
    for round_ in track(made.start(texts, **options), console=Console(stderr=True)):
        for name, scores in round_.scores.items():
            late = scores.alphas[max(0, first - scores.start) :]
            sums[name][round_.request] += float(late.sum())
            nums[name][round_.request] += len(late)
    rows = {}
    requests = sorted(nums[ALL])
    per_text = {
        name: (
            np.array([sums[name][r] for r in requests]),
            np.array([float(nums[name][r]) for r in requests]),
        )
        for name in sums
    }
    for name, (alphas, counts) in per_text.items():
        over = ratio(alphas, counts, *per_text[ALL])
        rows[name] = {
            "alpha": round(float(alphas.sum() / counts.sum()), 4),
            "positions": int(counts.sum()),
            "over_everything": round(over.value, 4),
            "ci95": [round(over.low, 4), round(over.high, 4)],
        }
    return rows


def memory(made: Speculator, text: list[int]) -> dict[str, Any]:
    """Kilobytes of each strategy's cache on a text of ``LONG`` tokens."""
    found = {}
    for drafter in made.drafters:
        assert isinstance(drafter, LMDrafter)
        session = drafter.start(1, LONG + 16)
        context = Context(0, text[:LONG], SamplingParams(), np.random.default_rng(0))
        session.propose([DraftTask(context, 1, Fixed())])
        found[drafter.name] = round(session._cache.num_bytes / 1e3, 1)
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
    table = Table("strategy", *[f"after {num}, ms" for num in costs], "kB", "alpha", "95%")
    for name in strategies(args.drafter, args.windows):
        low, high = alphas[name]["ci95"]
        table.add_row(
            name,
            *[f"{found[name]:.2f}" for found in costs.values()],
            f"{sizes[name]:.0f}",
            f"{alphas[name]['alpha']:.3f}, x {alphas[name]['over_everything']:.3f}",
            f"{low:.3f} to {high:.3f}",
        )
    Console().print(table)
    results = {"coming_back_ms": costs, "cache_kb": sizes, "acceptance": alphas}
    save(args.out, {"drafter": args.drafter, "read": READ, "long": LONG, **results})


if __name__ == "__main__":
    main()
