"""draftwise inside vLLM beside vLLM's own ways, paired and interleaved; run in vLLM's environment.

Every block of prompts is answered by every method in turn, in random order, by engines that are all
loaded; ratios are of CPU seconds of the engine's process, with a bootstrap over blocks. vLLM's
own methods run at each of ``--lengths``, and the best of them in hindsight is the one to beat.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from shared.results import header

from draftwise import zoo
from draftwise.bench.paired import ratio

CHILD = Path(__file__).with_name("shared") / "vllm_engine.py"


class Engine:
    """An engine in a child process."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, str(CHILD)],
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.ask(job)

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """Send one line, wait for one."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(task) + "\n")
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit("an engine died: see its messages above")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._child.kill()


def methods(args: argparse.Namespace) -> dict[str, tuple[str, int | None]]:
    """Name of a method to its engine and fixed length."""
    found: dict[str, tuple[str, int | None]] = {"none": ("none", None)}
    for name in args.methods:
        if name == "draftwise":
            found[name] = (name, None)
        else:
            found |= {f"{name} {length}": (name, length) for length in args.lengths}
    return found


def job_of(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the child of a method is started with."""
    engine: dict[str, Any] = {
        "model": args.target, "dtype": args.dtype, "max_num_seqs": max(args.at_once),
        "max_model_len": args.max_model_len,
    }  # fmt: skip
    longest = max(args.lengths)
    drafter = {"method": "draft_model", "model": args.drafter, "num_speculative_tokens": longest}
    own: dict[str, Any] = {"method": name, "num_speculative_tokens": longest}
    if name == "ngram":
        own |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    if name == "draft_model" or (name == "draftwise" and args.drafter):
        engine["speculative_config"] = drafter
    elif name not in {"none", "draftwise"}:
        engine["speculative_config"] = own
    return {"engine": engine, "draftwise": {} if name == "draftwise" else None}


def run(
    engines: dict[str, Engine], args: argparse.Namespace, prompts: list[str], at_once: int
) -> dict[str, Any]:
    """One table: every block by every method."""
    blocks = []
    while len(blocks) < args.blocks and len(prompts) >= at_once:  # no prompt is asked twice
        blocks.append([prompts.pop(0) for _ in range(at_once)])
    played = methods(args)
    facts = {name: np.zeros((len(blocks), 4)) for name in played}  # tokens, cpu, wall, own
    same = dict.fromkeys(played, True)
    for number, block in enumerate(blocks):
        order = list(played)
        random.Random(number).shuffle(order)
        answers = {}
        for name in order:
            engine, length = played[name]
            task = {"prompts": block, "max_tokens": args.max_tokens, "chat": args.chat}
            done = engines[engine].ask(task | {"length": length, "temperature": args.temperature})
            answers[name] = done["tokens"]
            num = sum(map(len, done["tokens"]))
            facts[name][number] = num, done["cpu_s"], done["wall_s"], done["own_s"]
        for name in played:
            same[name] &= answers[name] == answers["none"]
    return {name: row(facts, name, same[name]) for name in played} | {"blocks": len(blocks)}


def row(facts: dict[str, Any], name: str, same: bool) -> dict[str, Any]:
    """One method's numbers beside those of no speculation."""
    tokens, cpu, wall, own = facts[name].T
    base_tokens, base_cpu, base_wall, _ = facts["none"].T
    found = ratio(tokens, cpu, base_tokens, base_cpu)
    return {
        "tok_per_cpu_s": round(float(tokens.sum() / cpu.sum()), 2),
        "x_none": [round(value, 3) for value in (found.value, found.low, found.high)],
        "x_none_wall": round(ratio(tokens, wall, base_tokens, base_wall).value, 3),
        "own_share": round(float(own.sum() / cpu.sum()), 4),
        "identical": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=str(zoo.target_path()))
    parser.add_argument("--drafter", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", default=None, help="a jsonl with turns or prompts")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--methods", nargs="+", default=["ngram", "draftwise"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[2, 5])
    parser.add_argument("--at-once", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--random-prompts", action="store_true", help="nothing can be drafted")
    parser.add_argument("--out", default=None)
    args = parser.parse_args()
    prompts = read_prompts(args)
    names = {engine for engine, _ in methods(args).values()}
    engines = {name: Engine(job_of(name, args)) for name in sorted(names)}
    first = [prompts.pop() for _ in range(4)]  # they warm up; nothing of them counts
    for name, (engine, length) in methods(args).items():
        print(f"warming up {name}", file=sys.stderr)
        task = {"prompts": first, "max_tokens": 24, "chat": args.chat, "length": length}
        engines[engine].ask(task)
    record = {**header(), "tables": {}}
    for at_once in args.at_once:
        record["tables"][str(at_once)] = table = run(engines, args, prompts, at_once)
        for name, numbers in table.items():
            print(f"{at_once:>3} at once  {name:<16} {numbers}", flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(record, indent=1) + "\n")
    for engine in engines.values():
        engine.close()


def read_prompts(args: argparse.Namespace) -> list[str]:
    """First turns of Spec-Bench, kinds mixed; the zoo's prompts; or letters at random."""
    rng = random.Random(7)
    if args.random_prompts:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789 "
        return ["".join(rng.choices(letters, k=120)) for _ in range(64)]
    if args.prompts is None:
        found = [prompt for kind in zoo.prompts().values() for prompt in kind]
    else:
        lines = [json.loads(line) for line in Path(args.prompts).read_text().splitlines()]
        found = [line["turns"][0] if "turns" in line else line["prompt"] for line in lines]
        found = [prompt for prompt in found if len(prompt) < 2000]
    rng.shuffle(found)
    return found


if __name__ == "__main__":
    main()
