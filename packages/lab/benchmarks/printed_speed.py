"""The printed speed, "times plain decoding", against an interleaved measurement.

Every prompt is answered plainly and with drafts, in random order, by one Speculator each. The
printed speed is the quotient of the sums that ``generate``, the page and ``/metrics`` show; the
measured one is plain seconds over seconds with drafts for the same answers. Wall time: run it on a
quiet machine. ``whole``: with prefill, as a user's watch; ``decoding``: without. ``low``: the lower
end of the printed range, which is shown as one number, ``printed``, where both are within 5%.
``first``: the answers of a process that knows little of its costs yet. --work keeps every answer:
the same command goes on, in a process that is new.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from shared.script import run, show, track

from draftwise import Result, Speculator
from draftwise.bench.suites import as_messages, load_suite, usual_items
from draftwise.chat import has_template
from draftwise.cli.demo import plain_like
from draftwise.types import Floats
from draftwise_lab.train.answers import read_kept

FIRST = 10  # answers of a new process, which know little of its costs
Row = tuple[float, float, float, float, float, float, float]


def answer(
    made: Speculator, prompt: Any, args: argparse.Namespace, num: int
) -> tuple[Result, float]:
    gc.collect()
    start = time.perf_counter()
    found = made.generate(prompt, max_new_tokens=num, temperature=args.temperature, seed=0)
    return found, time.perf_counter() - start


def rows_of(args: argparse.Namespace, num: int) -> Floats:
    """[answers, 8]: the answer's number in its process; the account's plain and spent seconds,
    whole and decoding seconds of both, and the least seconds of plain decoding by the account.
    """
    kept = kept_at(args, num)
    known = read_kept(kept) if kept else []
    if len(known) >= args.answers:
        return np.array([row for _, row in known[: args.answers]])
    fast = Speculator.from_pretrained(args.target, drafters=args.drafter)
    plain, rows = plain_like(fast), [row for _, row in known]
    prompts = prompts_of(args, fast)
    for made in (plain, fast):  # allocators and lazy imports
        made.generate(prompts[-1], max_new_tokens=4)
    for index in track(range(len(known), args.answers)):
        found = {}
        for name, made in random.Random(index).sample([("plain", plain), ("fast", fast)], 2):
            found[name] = answer(made, prompts[index % len(prompts)], args, num)
        row = [index - len(known), *row_of(*found["plain"], *found["fast"])]
        rows.append(row)
        if kept:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([index, *row]) + "\n")
    return np.array(rows)


def prompts_of(args: argparse.Namespace, made: Speculator) -> list[Any]:
    is_chat = has_template(made.tokenizer)
    items = load_suite(args.suite).items if args.suite else usual_items(is_chat)
    return [as_messages(item.turns[0]) if is_chat else item.text for item in items]


def kept_at(args: argparse.Namespace, num: int) -> Path | None:
    """The file of the answers of ``num`` tokens in --work, which is of one target and settings."""
    if args.work is None:
        return None
    args.work.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(args, name) for name in ("target", "drafter", "suite", "temperature")}
    file = args.work / "settings.json"
    if not file.exists():
        file.write_text(json.dumps(settings), "utf-8")
    elif json.loads(file.read_text("utf-8")) != settings:
        raise SystemExit(f"{args.work} holds answers of other settings: {file}")
    return args.work / f"{num}.jsonl"


def row_of(slow: Result, slow_s: float, quick: Result, quick_s: float) -> Row:
    account = quick.stats.account
    return (
        account.plain_s, account.spent_s, slow_s, quick_s,
        slow_s - slow.stats.seconds_by_phase["prefill"],
        quick_s - quick.stats.seconds_by_phase["prefill"],
        (quick.stats.speed_range or (0.0, 0.0))[0] * account.spent_s,
    )  # fmt: skip


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
        nth, rows = np.split(rows_of(args, num), [1], axis=1)
        early = nth[:, 0] < FIRST
        for name, part in {"all": rows, "first": rows[early], "later": rows[~early]}.items():
            if len(part):
                found[f"{num} tokens, {name}"] = compared(part)
    show(found)
    return {"target": args.target, "speeds": found}


if __name__ == "__main__":
    run(
        __doc__, measure, target="zoo", drafter={"action": "append", "default": None},
        answers=100, tokens=[16, 128], temperature=0.0,
        suite={"default": None, "help": "as for draftwise bench; default: what try asks"},
        work={"type": Path, "default": None, "help": "folder that keeps every answer"},
    )  # fmt: skip
