"""The retrieval index of all running requests: time of a step and of a prompt, and memory.

Texts are Python sources of the standard library, cut as a tokenizer would; an answer rewrites its
request's prompt of 2,000 tokens with edits. A step emits what was accepted of the proposals and one
token more; each batch runs without a history and with 260,000 tokens of other answers in it. Times
are CPU time of the thread; ``--cold``: other work empties the caches in between. ``after``:
``propose_after`` a draft of 2 tokens.
"""

from __future__ import annotations

import argparse
import random
import re
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise.controller.compiled import warm_up
from draftwise.controller.retrieval import SLICE, RetrievalIndex, make_index

PROMPT, ANSWER = 2000, 1200
LIMIT = 16
WARM_UP = 60
HISTORY = 1 << 18
AIMS_MS = {1: 0.02, 16: 0.05, 64: 0.14, 256: 0.5}
AIMS_OPEN_MS = {2000: 0.6, 128_000: 25.0}


def sources(seed: int) -> list[list[int]]:
    """Files of the standard library, as token ids."""
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
    rng = random.Random(num)
    long = [text for text in texts if len(text) >= PROMPT + ANSWER]
    return [_request(long[row % len(long)], rng) for row in range(num)]


def _request(text: list[int], rng: random.Random) -> tuple[list[int], list[int]]:
    prompt, answer, at = text[:PROMPT], [], rng.randrange(200)
    while len(answer) < ANSWER:
        run = max(1, int(rng.expovariate(1 / 14)))
        answer += text[at : at + run]
        at = at + run if at + run < PROMPT else rng.randrange(PROMPT // 2)
        fresh = rng.randrange(PROMPT, len(text) - 8)
        answer += text[fresh : fresh + rng.randrange(1, 5)]
    return prompt, answer


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of this thread, and what the call returns."""
    begin_s = time.thread_time()
    result = call()
    return 1e3 * (time.thread_time() - begin_s), result


def remember(index: RetrievalIndex, texts: list[list[int]]) -> None:
    """Fill the history with the ends of files."""
    for text in texts[: 2 * HISTORY // ANSWER]:
        index.open(0, [])
        index.extend([0], text[-ANSWER:], [len(text[-ANSWER:])])
        index.close(0)
        while index.work(SLICE):
            pass


def steps(
    texts: list[list[int]], num: int, has_history: bool, cold: bool, compiled: bool
) -> dict[str, Any]:
    """Steps of a batch in which every request decodes."""
    index = make_index(LIMIT, HISTORY, compiled=compiled)
    if has_history:
        remember(index, texts)
    batch = requests(texts, num)
    for slot, (prompt, _) in enumerate(batch):
        index.open(slot, prompt)
    while index.work(SLICE):
        pass
    slots, limits = np.arange(num), np.full(num, LIMIT)
    num_drafted = np.full(num, 2)
    found = index.propose(slots, limits)
    trash = np.zeros(1 << 24 if cold else 1)
    times, at = [], np.zeros(num, np.int64)
    emitted = 0
    while at.max() < ANSWER - LIMIT - 1:
        new = [
            _emit(answer[at[row] :], found.tokens[row, : found.num_tokens[row]].tolist())
            for row, (_, answer) in enumerate(batch)
        ]
        counts = np.array([len(tokens) for tokens in new])
        flat = np.array([token for tokens in new for token in tokens], np.int32)
        trash += 1
        extend_ms, _ = timed(lambda s=(flat, counts): index.extend(slots, *s))
        propose_ms, found = timed(lambda: index.propose(slots, limits))
        drafts = found.tokens[:, :2].copy()
        trash += 1
        after_ms, _ = timed(lambda d=drafts: index.propose_after(slots, d, num_drafted, limits))
        work_ms, _ = timed(lambda: index.work(SLICE))
        times.append((extend_ms + propose_ms, extend_ms, propose_ms, after_ms, work_ms))
        at += counts
        emitted += len(flat)
    kept = np.array(times[WARM_UP:])
    total, extend, propose, after, work = np.median(kept, 0).tolist()
    return {
        "requests": num, "history": has_history, "compiled": compiled, "cold": cold,
        "steps": len(kept),
        "tokens_a_step": emitted / len(times) / num,
        "step_ms": total, "p99_ms": float(np.percentile(kept[:, 0], 99)),
        "extend_ms": extend, "propose_ms": propose, "after_ms": after, "work_ms": work,
        "aim_ms": AIMS_MS.get(num),
    }  # fmt: skip


def _emit(answer: list[int], draft: list[int]) -> list[int]:
    """What verification lets through, and one token more."""
    num = next((i for i, token in enumerate(draft) if token != answer[i]), len(draft))
    return answer[: num + 1]


def prompts(texts: list[list[int]], num: int, repeats: int) -> dict[str, Any]:
    """Opening a request of so many tokens, the slices of ``work`` included."""
    corpus = np.array([token for text in texts for token in text], np.int32)
    runs, longest, memory = [], [], 0
    index = make_index(LIMIT)
    for _ in range(repeats):
        before = index.memory().requests
        calls = [timed(lambda: index.open(0, corpus[:num]))[0]]
        is_left = True
        while is_left:
            took_ms, is_left = timed(lambda: index.work(SLICE))
            calls.append(took_ms)
        memory = index.memory().requests - before
        calls.append(timed(lambda: index.close(0))[0])
        runs.append(sum(calls))
        longest.append(max(calls))
    return {
        "prompt": num, "total_ms": float(np.median(runs)), "longest_call_ms": max(longest),
        "median_longest_ms": float(np.median(longest)), "aim_ms": AIMS_OPEN_MS.get(num),
        "mb": memory / 1e6,
    }  # fmt: skip


def measure(args: argparse.Namespace) -> dict[str, Any]:
    warm_up()
    texts = sources(seed=0)
    kinds = (True, False) if args.plain else (True,)
    rows = [
        steps(texts, num, has_history, args.cold, kind)
        for num in args.requests
        for has_history in (False, True)
        for kind in kinds
    ]
    show(rows, "a step")
    opened = [prompts(texts, num, repeats) for num, repeats in ((2000, 200), (128_000, 20))]
    show(opened, "a prompt")
    return {"steps": rows, "prompts": opened}


if __name__ == "__main__":
    run(
        __doc__, measure, requests=list(AIMS_MS),
        cold={"action": "store_true", "help": "empty the caches before each call"},
        plain={"action": "store_true", "help": "also the index in plain Python"},
    )  # fmt: skip
