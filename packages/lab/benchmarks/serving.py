"""A server with and without drafting, interleaved: throughput, time to first token, overhead.

Starts ``draftwise serve``. The two sides are requests to the same server that differ only in
``draftwise.preset``; with ``--rival`` the third side is ``transformers serve`` with continuous
batching, on the same model, thread count and precision. Sides are interleaved round by round; no
prompt repeats within a round, and no side drafts from another side's answers. Every answer is
compared with the plain one. Overhead: client seconds outside the engine, with one client. Idle: CPU
seconds of the server without requests. For load patterns use guidellm (docs/serving.md).

``--beside``: a prompt of so many tokens alone, and with a request of two tokens that arrives while
the prompt is read: seconds to the first token of both, in turn.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.script import run, show
from shared.servers import Answer, ask, ask_all, cpu_seconds, metric, served

from draftwise.bench.suites import load_suite
from draftwise.pool import resolve_target


@dataclass
class Side:
    """The server's port and process, and further fields of its requests."""

    port: int
    pid: int
    fields: dict[str, Any]


def ours(target: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "draftwise", "serve", "--target", target, "--port", str(port)]
    return [*command, "--max-queue", "256"]


def theirs(folder: str, port: int) -> list[str]:
    program = str(Path(sys.executable).with_name("transformers"))
    # the default cache takes most of the free memory; with 64 requests the process is killed
    limits = ["--cb-block-size", "32", "--cb-num-blocks", "1024", "--cb-max-batch-tokens", "2048"]
    options = ["--device", "cpu", "--dtype", "float32", "--continuous-batching", *limits]
    return [program, "serve", folder, "--port", str(port), *options]


def measure(
    sides: dict[str, Side], prompts: Sequence[str], at: int, rounds: int, tokens: int
) -> dict[str, Any]:
    """All sides at one concurrency, interleaved; draftwise's ratios are medians over rounds."""
    asked, spent = prompts[: max(8, at)], dict.fromkeys(sides, 0.0)
    found: list[dict[str, tuple[list[Answer], float]]] = []
    for number in range(rounds):
        found.append({})
        for name in list(sides) if number % 2 else reversed(sides):
            side = sides[name]
            body = {"max_tokens": tokens, "temperature": 0, **side.fields}
            if "draftwise" in body:  # a separate tenant: no drafts from another side's answers
                body["draftwise"] = {**body["draftwise"], "tenant": f"{name}-{at}-{number}"}
            before = cpu_seconds(side.pid)
            found[-1][name] = ask_all(side.port, asked, at, body)
            spent[name] += cpu_seconds(side.pid) - before
    row: dict[str, Any] = {"at_once": at, "processor_s": spent}
    for name in list(sides)[1:]:
        rates = [_rate(*each["draftwise"]) / _rate(*each[name]) for each in found]
        waits = [_first(each["draftwise"][0]) / _first(each[name][0]) for each in found]
        row[f"over {name}"], row[f"over {name}, rounds"] = statistics.median(rates), rates
        row[f"first token over {name}"] = statistics.median(waits)
    pairs = [p for e in found for p in zip(e["draftwise"][0], e["plain"][0], strict=True)]
    wrong = sum(a.error != "" or b.error != "" or a.text != b.text for a, b in pairs)
    return row | {"answers": len(pairs), "answers_that_differ": wrong}


def _rate(answers: Sequence[Answer], took_s: float) -> float:
    return sum(answer.num_tokens for answer in answers) / took_s


def _first(answers: Sequence[Answer]) -> float:
    return statistics.median(answer.first_s for answer in answers)


def learning(port: int, prompts: Sequence[str], tokens: int, num: int) -> dict[str, Any]:
    """One client sends a mix of prompts twice: throughput of the second pass over that of the
    first. The interval is a bootstrap over blocks of fifty requests."""
    mix = random.Random(0).choices(prompts, k=num) * 2
    found, _ = ask_all(port, mix, 1, {"max_tokens": tokens, "temperature": 0})
    speeds = [answer.num_tokens / answer.took_s for answer in found]
    blocks = [
        math.log(statistics.mean(speeds[num:][i : i + 50]) / statistics.mean(speeds[i : i + 50]))
        for i in range(0, num, 50)
    ]
    draws = random.Random(1)
    means = sorted(statistics.mean(draws.choices(blocks, k=len(blocks))) for _ in range(2000))
    low, mid, high = (math.exp(x) for x in (means[50], statistics.mean(blocks), means[1949]))
    return {"requests": 2 * num, "second_over_first": mid, "low": low, "high": high}


def beside(port: int, pid: int, num: int, rounds: int, tokens: int) -> list[dict[str, Any]]:
    """A prompt of ``num`` tokens alone and beside a prompt of two, which is sent after a quarter
    of the time that the long one takes alone; prompts begin differently, as prefixes are cached.
    Processor seconds are the server's, with all that both requests cost."""
    rows, rng = list[dict[str, Any]](), random.Random(0)
    body = {"max_tokens": tokens, "temperature": 0}
    ask(port, {**body, "prompt": [1000] * 64})  # allocators, and the speed of a forward
    for _ in range(rounds):
        before = cpu_seconds(pid)
        alone = ask(port, {**body, "prompt": rng.choices(range(1000, 4000), k=num)})
        between = cpu_seconds(pid)
        with ThreadPoolExecutor(1) as pool:
            prompt = rng.choices(range(1000, 4000), k=num)
            long = pool.submit(ask, port, {**body, "prompt": prompt})
            time.sleep(alone.first_s / 4)
            short = ask(port, {**body, "prompt": rng.choices(range(1000, 4000), k=2)})
        both = long.result()
        if failed := alone.error or short.error or both.error:
            sys.exit(failed)
        rows.append({
            "short, first token, s": short.first_s, "its answer, s": short.took_s,
            "long alone, s": alone.first_s, "beside, s": both.first_s,
            "later": both.first_s / alone.first_s - 1,
            "processor, alone, s": between - before, "both, s": cpu_seconds(pid) - between,
        })  # fmt: skip
    return rows


def overhead(side: Side, prompts: Sequence[str], tokens: int) -> float:
    """Share of a request's time outside the engine, with one client."""
    before = metric(side.port, "draftwise:phase_seconds_total")
    answers, _ = ask_all(side.port, prompts, 1, {"max_tokens": tokens, "temperature": 0})
    spent = metric(side.port, "draftwise:phase_seconds_total") - before
    return 1 - spent / sum(answer.took_s for answer in answers)


def serve(args: argparse.Namespace) -> dict[str, Any]:
    prompts = [item.text for item in load_suite(args.suite, args.prompts).items]
    most = 1 if args.learn or args.beside else max(args.at)
    if most > len(prompts):
        sys.exit(f"{most} at once need as many prompts; there are {len(prompts)}: --prompts")
    with served(ours(args.target, args.port), args.port) as process, ExitStack() as more:
        if args.learn:
            row = learning(args.port, prompts, args.tokens, args.learn)
            show([row])
            return {"learning": row}
        if args.beside:
            rows = beside(args.port, process.pid, args.beside, args.rounds, args.tokens)
            show(rows)
            return {"beside": rows}
        sides = {
            "draftwise": Side(args.port, process.pid, {"draftwise": {}}),
            "plain": Side(args.port, process.pid, {"draftwise": {"preset": "plain"}}),
        }
        if args.rival:
            folder, port = str(resolve_target(args.target)[0]), args.port + 1
            rival = more.enter_context(served(theirs(folder, port), port))
            sides["transformers serve"] = Side(port, rival.pid, {"model": folder})
        rows = [measure(sides, prompts, at, args.rounds, args.tokens) for at in args.at]
        share = overhead(sides["draftwise"], prompts[:16], args.tokens)
        before = cpu_seconds(process.pid)
        time.sleep(5)
        idle = (cpu_seconds(process.pid) - before) / 5
    show(rows, f"overhead {share:.1%} of a request's time; idle {idle:.1%} of a core")
    return {"rows": rows, "overhead": share, "idle": idle}


if __name__ == "__main__":
    run(
        __doc__, serve, target="zoo", at=[1, 4, 16, 64], rounds=3, tokens=96, prompts=2,
        suite="zoo", port=8399, rival={"action": "store_true", "help": "transformers serve, too"},
        learn={"type": int, "default": 0, "help": "requests of each half; nothing else"},
        beside={"type": int, "default": 0, "help": "tokens of a long prompt; nothing else"},
    )  # fmt: skip
