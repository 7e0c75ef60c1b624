"""Where nothing can be drafted: what trying costs, and how soon drafting is back when it pays.

The bundled drafters with their logits moved by one token: all that they draft is rejected. Answers
are sampled at temperature 1, so that ``lookup``, which no one can spoil, finds little either. The
clock moves by given costs (``shared/clock.py``), or is that of the machine (``--clock wall``).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from shared.clock import CLOCKS, on_clock
from shared.compare import span, zoo_texts
from shared.script import run, show, track

from draftwise import Speculator

ZOO = [f"zoo:{n}" for n in ["python", "math", "sql", "prose", "translate", "edit", "generalist"]]


class Spoilt:
    """A model that says everything one token too high, for as long as ``is_wrong[0]``."""

    def __init__(self, model: Any, is_wrong: Sequence[bool]) -> None:
        self._model, self._is_wrong = model, is_wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def extend(self, *args: Any, **options: Any) -> Any:
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


def never(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second over plain decoding, all prompts and the worst of them."""
    prompts, options = zoo_texts(args.domains), {"max_new_tokens": args.tokens, "temperature": 1.0}
    pools = {"plain": [], "spoilt": ZOO, "spoilt and lookup": [*ZOO, "lookup"]}
    loaded = {n: load("draftwise" if p else "plain", p, args.clock) for n, p in pools.items()}
    seconds = np.full((args.repeats, len(pools), len(prompts)), np.inf)
    for repeat in range(args.repeats):
        for seed, prompt in enumerate(track(prompts)):
            for pool, (spec, now, _) in enumerate(loaded.values()):
                start = now()
                spec.generate(prompt, seed=seed, ignore_eos=True, **options)
                seconds[repeat, pool, seed] = now() - start
    least, tokens = seconds.min(0), np.full(len(prompts), args.tokens)
    rows = {
        name: {
            "over plain": span(tokens, least[pool], tokens, least[0]),
            "worst": float((least[0] / least[pool]).min()),
        }
        for pool, name in enumerate(pools)
    }
    show(rows)
    return {"clock": args.clock, "tokens": args.tokens, "never": rows}


def after_a_while(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds from the token from which drafters are right to the first that accepts a draft."""
    spec, _, is_wrong = load("draftwise", args.drafter or ZOO, args.clock)
    waits, mats = [], []
    for seed, prompt in enumerate(track(zoo_texts(args.domains))):
        is_wrong[0], written, wait, after = True, 0, 0, []
        for round_ in spec.start(
            prompt, max_new_tokens=args.tokens + 100, temperature=args.temperature,
            ignore_eos=True, seed=seed,
        ):  # fmt: skip
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
    show([found])
    return {"clock": args.clock, "return": found, "rounds": waits}


if __name__ == "__main__":
    run(
        __doc__, {"never": never, "return": after_a_while}, domains=4, tokens=256, repeats=1,
        temperature={"type": float, "default": 1.0, "help": "of the part return"},
        drafter={"action": "append", "help": "of the part return; default: all LM drafters"},
        clock={"choices": [*CLOCKS, "wall"], "default": "cpu"},
    )  # fmt: skip
