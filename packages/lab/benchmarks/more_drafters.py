"""What each drafter adds: pools of them on the same prompts, in turns, in one run.

    python -m benchmarks more_drafters --suite spec-bench:question.jsonl --prompts 4

Pools: retrieval alone; with each of the drafters that come along for the target; with all of them.
Clock: CPU time of the process, reading the prompt included. Ratios are to plain decoding and to
retrieval alone, of all tokens over all seconds, with 95% intervals over prompts.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.results import save

from draftwise import Speculator
from draftwise.bench.paired import Timing, turns
from draftwise.bench.suites import load_suite
from draftwise.real.bundled import RETRIEVAL, own_specs

PLAIN, FIRST, ALL = "plain", "retrieval", "all"


def pools(target: str) -> dict[str, list[str]]:
    """Drafters by the name of their pool."""
    own = [f"{name}={spec}" for name, spec in own_specs(target).items()]
    one_more = {spec.partition("=")[0]: [*RETRIEVAL, spec] for spec in own}
    return {FIRST: [*RETRIEVAL], **one_more, ALL: [*RETRIEVAL, *own]}


def answer(made: Speculator, text: str, num_tokens: int) -> tuple[list[int], float]:
    """Greedy tokens, and the seconds that they took."""
    start = time.process_time()
    said = made.start([{"role": "user", "content": text}], max_new_tokens=num_tokens, seed=0)
    tokens = list(itertools.chain.from_iterable(round_.tokens for round_ in said))
    return tokens, time.process_time() - start


def compared(timing: Timing, domains: list[str]) -> dict[str, Any]:
    """Each pool by category: [value, low, high] over plain decoding, and over retrieval."""
    rows: dict[str, Any] = {}
    table = Table("pool", "category", "x plain", "x retrieval", "95%")
    for name in timing.names:
        for domain in ("over all", *dict.fromkeys(domains)):
            chosen = np.array([domain in ("over all", own) for own in domains])
            part = timing.only(chosen)
            to_plain, to_first = part.ratio(name, PLAIN), part.ratio(name, FIRST)
            rows.setdefault(name, {})[domain] = {"to_plain": to_plain, "to_retrieval": to_first}
            value, low, high = to_first
            table.add_row(
                name, domain, f"{to_plain[0]:.2f}", f"{value:.2f}", f"{low:.2f}-{high:.2f}"
            )
    Console().print(table)
    return rows


def main() -> None:
    """Answer in turns, compare, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--suite", required=True)
    parser.add_argument("--prompts", type=int, default=4, help="of each category")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = {"dtype": args.dtype, "seed": 0}
    made = {
        PLAIN: Speculator.from_pretrained(args.target, [], preset="plain", **load),
        **{
            name: Speculator.from_pretrained(args.target, specs, **load)
            for name, specs in pools(args.target).items()
        },
    }
    names, items = list(made), load_suite(args.suite, args.prompts).items
    seconds, num_tokens = np.zeros((2, len(names), len(items)))
    texts: list[dict[str, list[int]]] = [{} for _ in items]
    for _, place, order in track(list(turns(names, len(items), 1)), console=Console(stderr=True)):
        for name in order:
            row, text = names.index(name), items[place].turns[0]
            texts[place][name], seconds[row, place] = answer(made[name], text, args.tokens)
            num_tokens[row, place] = len(texts[place][name])
    same = {n: all(said[n] == said[PLAIN] for said in texts) for n in names}
    rows = compared(Timing(names, seconds, num_tokens, same), [str(item.domain) for item in items])
    about = {"target": args.target, "dtype": args.dtype, "prompts": len(items)}
    save(args.out, {**about, "texts_equal": same, "pools": rows})


if __name__ == "__main__":
    main()
