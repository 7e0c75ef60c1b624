"""Where nothing can be drafted: what trying costs, and how soon drafting is back when it pays.

    python -m benchmarks adversarial --part never    # drafters that are always wrong
    python -m benchmarks adversarial --part return   # ... for the first 100 tokens of each answer

The bundled drafters with their logits moved by one token: all that they draft is rejected. Answers
are sampled at temperature 1, so that ``lookup``, which no one can spoil, finds little either. The
clock moves by given costs (``clock.py``), or is that of the machine (``--clock wall``).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.clock import CLOCKS, on_clock
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise.bench.paired import ratio

ZOO = ["zoo:python", "zoo:math", "zoo:sql", "zoo:prose", "zoo:translate", "zoo:edit",
       "zoo:generalist"]  # fmt: skip


class Spoilt:
    """A model that says everything one token too high, for as long as ``is_wrong[0]``."""

    def __init__(self, model: Any, is_wrong: Sequence[bool]) -> None:
        self._model, self._is_wrong = model, is_wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def extend(self, *args: Any, **options: Any) -> Any:
        """As the model's own, and then moved."""
        logits = self._model.extend(*args, **options)
        if not self._is_wrong[0]:
            return logits
        return dataclasses.replace(logits, block=logits.block.roll(1, -1))


def load(preset: str, drafters: Sequence[str], clock: str) -> tuple[Speculator, Any, list[bool]]:
    """A speculator with spoilt drafters, its clock, and the switch that spoils them."""
    spec, is_wrong = Speculator.from_pretrained("zoo", drafters, preset=preset), [True]
    now = on_clock(spec, clock)
    for loaded in spec.drafters:
        own: Any = loaded
        if hasattr(own, "model"):
            own.model = Spoilt(own.model, is_wrong)
    return spec, now, is_wrong


def part_never(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second over plain decoding, all prompts and the worst of them."""
    prompts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
    options = {"max_new_tokens": args.tokens, "temperature": 1.0, "ignore_eos": True}
    pools = {"plain": [], "spoilt": ZOO, "spoilt and lookup": [*ZOO, "lookup"]}
    loaded = {
        name: load("draftwise" if pool else "plain", pool, args.clock)
        for name, pool in pools.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in pools}
    for repeat in range(args.repeats):
        for seed, prompt in enumerate(track(prompts, console=Console(stderr=True))):
            for name, (spec, now, _) in loaded.items():
                start = now()
                spec.generate(prompt, seed=seed, **options)
                taken = now() - start
                if repeat == 0:
                    seconds[name].append(taken)
                seconds[name][seed] = min(seconds[name][seed], taken)
    table = Table("pool", "x plain", "95%", "worst prompt")
    rows, tokens = {}, np.full(len(prompts), args.tokens)
    plain = np.array(seconds["plain"])
    for name, taken in seconds.items():
        own = np.array(taken)
        found = ratio(tokens, own, tokens, plain)
        worst = float((plain / own).min())
        rows[name] = {**dataclasses.asdict(found), "worst": worst}
        table.add_row(name, f"{found.value:.3f}", f"{found.low:.3f} to {found.high:.3f}",
                      f"{worst:.3f}")  # fmt: skip
    Console().print(table)
    return {"clock": args.clock, "tokens": args.tokens, "never": rows}


def part_return(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds from the token from which drafters are right to the first draft of two or more."""
    spec, _, is_wrong = load("draftwise", args.drafter or ZOO, args.clock)
    prompts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
    waits, mats = [], []
    for seed, prompt in enumerate(track(prompts, console=Console(stderr=True))):
        is_wrong[0], written, wait, after = True, 0, 0, []
        generation = spec.start(
            prompt, max_new_tokens=args.tokens + 100, temperature=args.temperature,
            ignore_eos=True, seed=seed,
        )  # fmt: skip
        for round_ in generation:
            if not is_wrong[0]:
                after.append(round_.num_emitted)
                if wait == 0 and round_.num_accepted > 0:
                    wait = len(after)
            written += round_.num_emitted
            is_wrong[0] = written < 100
        waits.append(wait or len(after))
        mats.append(sum(after) / len(after))
    found = {
        "median": float(np.median(waits)),
        "p90": float(np.quantile(waits, 0.9)),
        "most": int(max(waits)),
        "within_20": float(np.mean(np.array(waits) <= 20)),
        "mat_after": float(np.mean(mats)),
    }
    table = Table(*found)
    table.add_row(*(f"{value:.2f}" for value in found.values()))
    Console().print(table)
    return {"clock": args.clock, "return": found, "rounds": waits}


def main() -> None:
    """Run one part and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=["never", "return"], required=True)
    parser.add_argument("--clock", choices=[*CLOCKS, "wall"], default="cpu")
    parser.add_argument("--drafter", action="append", help="of the part return: all LM drafters")
    parser.add_argument("--prompts", type=int, default=4, help="held-out prompts a domain")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the part return")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    parts = {"never": part_never, "return": part_return}
    save(args.out, parts[args.part](args))


if __name__ == "__main__":
    main()
