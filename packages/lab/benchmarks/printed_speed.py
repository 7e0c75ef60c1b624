"""The printed speed, "times plain decoding", against an interleaved measurement.

Every prompt is answered plainly and with drafts, in random order, by one Speculator each. The
printed speed is the quotient of the sums that ``generate``, the page and ``/metrics`` show; the
measured one is plain seconds over seconds with drafts for the same answers. Wall time: run it on a
quiet machine. ``whole``: with prefill, as a user's watch; ``decoding``: without. ``low``: the lower
end of the printed range, which is shown as one number, ``printed``, where both are within 5%.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from shared.script import run, show, track

from draftwise import Speculator
from draftwise.bench.suites import as_messages, usual_items
from draftwise.chat import has_template
from draftwise.cli.demo import plain_like
from draftwise.types import Floats

FIRST = 10  # answers of a new process, which know little of its costs
Row = tuple[float, float, float, float, float, float, float]


def answer(made: Speculator, prompt: Any, args: argparse.Namespace, num: int) -> tuple[Any, float]:
    gc.collect()
    start = time.perf_counter()
    found = made.generate(prompt, max_new_tokens=num, temperature=args.temperature, seed=0)
    return found, time.perf_counter() - start


def rows_of(args: argparse.Namespace, num: int) -> Floats:
    """[answers, 7]: the account's plain and spent seconds, whole and decoding seconds of both, and
    the least seconds of plain decoding by the account.
    """
    fast = Speculator.from_pretrained(args.target, drafters=args.drafter)
    plain, rng, rows = plain_like(fast), random.Random(0), list[Row]()
    is_chat = has_template(fast.tokenizer)
    items = usual_items(is_chat)
    prompts = [as_messages(item.turns[0]) if is_chat else item.turns[0] for item in items]
    for made in (plain, fast):  # allocators and lazy imports
        made.generate(prompts[-1], max_new_tokens=4)
    for index in track(range(args.answers)):
        prompt, found = prompts[(args.skip + index) % len(prompts)], {}
        for name, made in rng.sample([("plain", plain), ("fast", fast)], 2):
            found[name] = answer(made, prompt, args, num)
        (slow, slow_s), (quick, quick_s) = found["plain"], found["fast"]
        account = quick.stats.account
        rows.append((
            account.plain_s, account.spent_s, slow_s, quick_s,
            slow_s - slow.stats.seconds_by_phase["prefill"],
            quick_s - quick.stats.seconds_by_phase["prefill"],
            (quick.stats.speed_range or (0.0, 0.0))[0] * account.spent_s,
        ))  # fmt: skip
    return np.array(rows)


def compared(rows: Floats) -> dict[str, Any]:
    """Printed and measured speed of all these answers together, and how single answers differ."""
    plain, spent, slow, quick, slow_decoding, quick_decoding, least = rows.sum(0)
    nearest = np.clip(slow / quick, least / spent, plain / spent)
    off = rows[:, 0] / rows[:, 1] / (rows[:, 2] / rows[:, 3]) - 1
    return {
        "answers": len(rows),
        "low": least / spent,
        "printed": plain / spent,
        "whole": slow / quick,
        "decoding": slow_decoding / quick_decoding,
        "off whole": plain / spent / (slow / quick) - 1,
        "off range": float(nearest) / (slow / quick) - 1,
        "off decoding": plain / spent / (slow_decoding / quick_decoding) - 1,
        "median |off|": float(np.median(np.abs(off))),
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Mapping[str, Any]] = {}
    for num in args.tokens:
        rows = rows_of(args, num)
        parts: dict[str, Floats] = {"all": rows, "first": rows[:FIRST], "later": rows[FIRST:]}
        for name, part in parts.items():
            if len(part):
                found[f"{num} tokens, {name}"] = compared(part)
    show(found)
    return {"target": args.target, "speeds": found}


if __name__ == "__main__":
    run(
        __doc__, measure, target="zoo", drafter={"action": "append", "default": None},
        answers=100, tokens=[16, 128], temperature=0.0,
        skip={"type": int, "default": 0, "help": "prompts that an earlier run had"},
    )  # fmt: skip
