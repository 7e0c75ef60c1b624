"""The controller's own time: in a step, while the engine computes, for prompts and long answers.

Requests have 2,000 tokens of Python source from the standard library, split as by a tokenizer, and
answers copy it with edits. A simulated model drafter predicts 7 of 10 tokens correctly; a step
takes 6 ms and 10 us per token. ``step_ms`` is the processor time of ``observe`` and ``choose``,
``work_ms`` that of ``work``. ``idle``: random answers, where nothing can be drafted. The garbage
collector is off during steps, because it would scan this script's lists.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise.compiled import warm_up
from draftwise.controller.controller import Controller, Limits
from draftwise.controller.costs import Step
from draftwise.retrieval.index import RetrievalIndex

WARM_UP = 60
RIGHT = 0.7
PROMPT, ANSWER, LIMIT = 2000, 1200, 16


def sources(seed: int) -> list[list[int]]:
    """Token ids of the standard library's files."""
    vocabulary: dict[str, int] = {}
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*.py"))
    files += sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*/[a-z]*.py"))
    random.Random(seed).shuffle(files)
    texts = []
    for file in files:
        words = re.findall(r" ?\w{1,7}|\s+|[^\w\s]", file.read_text("utf-8", errors="replace"))
        texts.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
    return texts


def requests(texts: list[list[int]], num: int) -> list[tuple[list[int], list[int]]]:
    """Prompts, and answers that copy them in runs of about 14 tokens."""
    rng, found = random.Random(num), []
    long = [text for text in texts if len(text) >= PROMPT + ANSWER]
    for row in range(num):
        text, answer, at = long[row % len(long)], [], rng.randrange(200)
        while len(answer) < ANSWER:
            run = max(1, int(rng.expovariate(1 / 14)))
            answer += text[at : at + run]
            at = at + run if at + run < PROMPT else rng.randrange(PROMPT // 2)
            fresh = rng.randrange(PROMPT, len(text) - 8)
            answer += text[fresh : fresh + rng.randrange(1, 5)]
        found.append((text[:PROMPT], answer))
    return found


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin_s = time.thread_time()
    result = call()
    return 1e3 * (time.thread_time() - begin_s), result


def steps(texts: list[list[int]], num: int, idle: bool) -> dict[str, Any]:
    controller = Controller(Limits(model=not idle))
    rng = random.Random(num)
    batch = requests(texts, num)
    if idle:
        batch = [(own, [rng.randrange(10**6, 10**9) for _ in answer]) for own, answer in batch]
    names = [f"request-{row}" for row in range(num)]
    for name, (prompt, _) in zip(names, batch, strict=True):
        controller.begin(name, prompt)
    while controller.work():
        pass
    at = [0] * num
    drafts, length = [[] for _ in names], 0
    times: list[tuple[float, float]] = []
    gc.disable()
    while max(at) < ANSWER - 40:
        emitted = []
        for row, (_, answer) in enumerate(batch):
            truth = answer[at[row] :]
            kept = _in_common(drafts[row], truth)
            emitted.append(truth[: kept + 1])
            at[row] += kept + 1
        drafted = sum(map(len, drafts))
        step = Step(num, num + drafted, (6 + 0.01 * (num + drafted) + 0.4 * length) / 1e3, length)
        offers = [
            [token if rng.random() < RIGHT else 0 for token in answer[place : place + length]]
            for place, (_, answer) in zip(at, batch, strict=True)
        ] if length else None  # fmt: skip
        learnt_ms, _ = timed(lambda s=step, e=emitted: controller.observe(s, names, e))
        chosen_ms, drafts = timed(lambda o=offers: controller.choose(names, [LIMIT] * num, o))
        work_ms, _ = timed(controller.work)
        length = controller.num_to_draft
        times.append((learnt_ms + chosen_ms, work_ms))
    gc.enable()
    step_ms, work_ms = np.array(times[WARM_UP:]).T
    return {
        "requests": num, "idle": idle, "steps": len(step_ms),
        "tokens_a_step": sum(at) / len(times) / num, "step_ms": float(np.median(step_ms)),
        "p99_ms": float(np.percentile(step_ms, 99)), "work_ms": float(np.median(work_ms)),
    }  # fmt: skip


def _in_common(draft: list[int], truth: list[int]) -> int:
    return next((i for i, token in enumerate(draft) if token != truth[i]), len(draft))


def prompts(texts: list[list[int]], num: int, repeats: int) -> dict[str, Any]:
    """Milliseconds to begin a request with ``num`` tokens in a list, including its slices of
    ``work``. Medians over requests, also of a request's longest call; ``mb``: its text and
    index."""
    corpus = [token for text in texts for token in text][:num]
    controller, index = Controller(Limits(LIMIT)), RetrievalIndex(LIMIT, history=0)
    empty = index.memory().requests
    index.open(0, corpus)
    times = []
    for _ in range(repeats):
        calls = [timed(lambda: controller.begin("request", corpus))[0]]
        is_left = True
        while is_left:
            took_ms, is_left = timed(controller.work)
            calls.append(took_ms)
        calls.append(timed(lambda: controller.end("request"))[0])
        times.append((calls[0], sum(calls), max(calls)))
    begin_ms, total_ms, longest_ms = np.median(times, 0).tolist()
    return {
        "prompt": num, "begin_ms": begin_ms, "total_ms": total_ms,
        "median_longest_ms": longest_ms, "longest_call_ms": max(longest for *_, longest in times),
        "mb": (index.memory().requests - empty) / 1e6,
    }  # fmt: skip


def growth(num: int, length: int, num_steps: int) -> dict[str, Any]:
    """Texts of equal length that outgrow their blocks together, at 4 random tokens per step."""
    controller, rng = Controller(Limits(LIMIT)), random.Random(0)
    names = [f"request-{row}" for row in range(num)]
    for name in names:
        controller.begin(name, [rng.randrange(10**6) for _ in range(length)])
        while controller.work():
            pass
    times, step = [], Step(num, 4 * num, 6e-3)
    gc.disable()
    for _ in range(num_steps):
        new = [[rng.randrange(10**6) for _ in range(4)] for _ in names]
        learnt_ms, _ = timed(lambda e=new: controller.observe(step, names, e))
        chosen_ms, _ = timed(lambda: controller.choose(names, [LIMIT] * num))
        times.append((learnt_ms + chosen_ms, timed(controller.work)[0]))
    gc.enable()
    step_ms, work_ms = np.array(times[10:]).T
    return {
        "requests": num, "from": length, "to": length + 4 * num_steps,
        "step_ms": float(np.median(step_ms)), "longest_step_ms": float(step_ms.max()),
        "work_ms": float(np.median(work_ms)), "longest_work_ms": float(work_ms.max()),
    }  # fmt: skip


COMPILE = """
import time
from draftwise.compiled import warm_up
from draftwise.controller.controller import Controller
Controller
begin_s = time.process_time()
wall_s = warm_up()
print(wall_s, time.process_time() - begin_s)
"""


def compiling() -> dict[str, Any]:
    """Wall and processor seconds of compilation, without and with a cache."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "cached"):
            made = subprocess.run(
                [sys.executable, "-c", COMPILE], env={**os.environ, "NUMBA_CACHE_DIR": folder},
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            wall_s, cpu_s = map(float, made.stdout.split())
            found |= {f"{name}_s": wall_s, f"{name}_cpu_s": cpu_s}
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    warm_up()
    texts = sources(seed=0)
    rows = [steps(texts, num, idle) for num in args.requests for idle in (False, True)]
    show(rows, "a step")
    opened = [prompts(texts, num, repeats) for num, repeats in ((2000, 200), (128_000, 20))]
    show(opened, "a prompt")
    grown = [growth(*sizes) for sizes in ((64, 2000, 600), (256, 2000, 600), (1, 250_000, 36_000))]
    show(grown, "texts that grow")
    compiled = compiling()
    show([compiled], "compiling")
    return {"steps": rows, "prompts": opened, "growth": grown, "compiling": compiled}


if __name__ == "__main__":
    run(__doc__, measure, requests=[1, 16, 64, 256])
