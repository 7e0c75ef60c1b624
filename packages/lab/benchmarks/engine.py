"""Continuous batching: batches, arrivals, long prompts, conversations, memory.

Seconds are CPU time of the process, which other programs do not affect; idle time is skipped.
Settings are interleaved in random order.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise import Speculator, zoo
from draftwise.engine.engine import Engine
from draftwise.engine.request import Request
from draftwise.types import Floats


class Clock:
    """CPU seconds of this process, plus idle time."""

    def __init__(self) -> None:
        self._start, self._waited = time.process_time(), 0.0

    def __call__(self) -> float:
        return time.process_time() - self._start + self._waited

    def wait_until(self, moment: float) -> None:
        self._waited += max(0.0, moment - self())


def texts(num: int, seed: int = 0) -> list[str]:
    """Held-out prompts of all domains, mixed."""
    known = [prompt for prompts in zoo.prompts().values() for prompt in prompts]
    return [known[i % len(known)] for i in np.random.default_rng(seed).permutation(num)]


def ask(made: Speculator, prompt: Any, tokens: int, preset: str) -> Request:
    return made.request(prompt, max_new_tokens=tokens, ignore_eos=True, preset=preset)


def answer_all(made: Speculator, prompts: Sequence[str], tokens: int, preset: str) -> int:
    """Answer requests that arrive together; return their number of tokens."""
    engine = made.engine(num_prefixes=0)
    asked = [ask(made, prompt, tokens, preset) for prompt in prompts]
    for request in asked:
        engine.admit(request)
    while engine.has_work:
        engine.step()
    return sum(len(request.tokens) for request in asked)


def all_at_once(made: Speculator, prompts: Sequence[str], tokens: int, preset: str) -> float:
    """Tokens per CPU second of requests that arrive together."""
    clock = Clock()
    return answer_all(made, prompts, tokens, preset) / clock()


def interval(name: str, ratios: Sequence[float] | Floats) -> dict[str, Any]:
    rng, values = np.random.default_rng(0), np.array(ratios)
    medians = np.median(rng.choice(values, (2000, len(values))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return {name: float(np.median(values)), "low": float(low), "high": float(high)}


def together(made: Speculator, repeats: int) -> list[dict[str, Any]]:
    """``draftwise`` relative to plain decoding in the same engine."""
    rows, rng = [], np.random.default_rng(0)
    for num in (1, 4, 16, 64):
        ratios = []
        for repeat in range(repeats + 1):
            prompts = texts(64, repeat)[:num]
            speeds = {
                str(preset): all_at_once(made, prompts, 64, str(preset))
                for preset in rng.permutation(["draftwise", "plain"])
            }
            if repeat:  # the first repeat is warm-up
                ratios.append(speeds["draftwise"] / speeds["plain"])
        rows.append({"rows": num, **interval("times plain", ratios)})
    return rows


def joining(
    made: Speculator, arrivals: Sequence[tuple[float, str]], tokens: int, preset: str, most: int
) -> float:
    """Tokens per second with continuous batching and at most ``most`` concurrent requests."""
    engine, clock, waiting = made.engine(max_rows=most, num_prefixes=0), Clock(), list(arrivals)
    asked = []
    while waiting or engine.has_work:
        if not engine.has_work and waiting:
            clock.wait_until(waiting[0][0])
        while waiting and waiting[0][0] <= clock():
            asked.append(ask(made, waiting.pop(0)[1], tokens, preset))
            engine.admit(asked[-1])
        engine.step()
    return sum(len(request.tokens) for request in asked) / clock()


def in_batches(made: Speculator, arrivals: Sequence[tuple[float, str]], tokens: int) -> float:
    """Tokens per second with static batches of eight that draft: each batch starts when its
    requests have arrived and the previous batch has ended."""
    clock, num = Clock(), 0
    for first in range(0, len(arrivals), 8):
        batch = arrivals[first : first + 8]
        clock.wait_until(batch[-1][0])
        num += answer_all(made, [prompt for _, prompt in batch], tokens, "draftwise")
    return num / clock()


def arriving(made: Speculator, repeats: int) -> list[dict[str, Any]]:
    """Requests that join a running batch, relative to plain decoding that they join and to static
    batches of eight; five arrival rates: half to eight times the throughput of one row."""
    alone = all_at_once(made, texts(8)[:1], 64, "draftwise") / 64
    ways: dict[str, Any] = {"batches of 8": in_batches}
    for n in (16, 64):
        ways |= {f"{w} {n}": partial(joining, preset=w, most=n) for w in ("draftwise", "plain")}
    rows, rng = [], np.random.default_rng(1)
    for load in (0.5, 1.0, 2.0, 4.0, 8.0):
        found = {way: np.zeros(repeats) for way in ways}
        for repeat in range(repeats):
            moments = np.cumsum(rng.exponential(1 / (load * alone), 64)).tolist()
            arrivals = list(zip(moments, texts(64, repeat), strict=True))
            for way in rng.permutation(list(ways)):
                found[way][repeat] = ways[way](made, arrivals, 64)
        for n, other in ((16, "plain 16"), (64, "plain 64"), (16, "batches of 8")):
            name = f"times {other.removesuffix(f' {n}')}"
            over = interval(name, found[f"draftwise {n}"] / found[other])
            rows.append({"load": load, "rows": n, **over})
    return rows


def gap(made: Speculator, repeats: int) -> list[dict[str, Any]]:
    """The longest pause of decoding rows during another request's prefill, relative to their median
    round."""
    length = min(4000, made.target.max_positions - 80)
    ids = made.tokenizer(" ".join(texts(64)))["input_ids"]
    newcomer = (ids * (1 + length // len(ids)))[:length]
    rows = []
    for _ in range(repeats):
        engine = made.engine(num_prefixes=0)
        writers = [ask(made, prompt, 1200, "draftwise") for prompt in texts(8)[:4]]
        for writer in writers:
            engine.admit(writer)
        rounds = [timed(engine) for _ in range(40)]
        late = ask(made, newcomer, 16, "draftwise")
        engine.admit(late)
        reading = [timed(engine)]
        while not late.is_over and not all(writer.is_over for writer in writers):
            reading.append(timed(engine))
        assert late.tokens, "the rows that write have ended before the prompt was read"
        engine.close()
        worst = max(reading) / float(np.median(rounds))
        rows.append({"prompt": length, "longest gap over median round": worst})
    return rows


def timed(engine: Engine) -> float:
    start = time.process_time()
    engine.step()
    return time.process_time() - start


def chat(made: Speculator, repeats: int) -> list[dict[str, Any]]:
    """CPU seconds to the first token, for ten turns of a conversation."""
    rows = []
    for repeat in range(repeats):
        engine, text, firsts = made.engine(), "", []
        for turn in range(10):
            text += texts(64, repeat)[turn]
            request, start = ask(made, text, 40, "draftwise"), time.process_time()
            engine.admit(request)
            while not request.tokens:
                engine.step()
            firsts.append(time.process_time() - start)
            while engine.has_work:
                engine.step()
            text += request.answer.text
        rows.append({"turn 1, s": firsts[0], "turn 10 over turn 1": firsts[9] / firsts[0]})
    return rows


def memory(made: Speculator, repeats: int) -> list[dict[str, Any]]:
    """Peak bytes allocated relative to bytes of live tokens; MB of growth over 1,000 requests. Live
    tokens are texts and, during verification, drafts; also reported without drafts."""
    engine, worst, token = made.engine(num_prefixes=0), [0.0, 0.0], made.target.token_bytes
    for prompt in texts(16):
        engine.admit(ask(made, prompt, 200, "draftwise"))
    while engine.has_work:
        most = {o.request: o.rounds[0][0] - len(o.tokens) for o in engine.step() if o.rounds}
        written = sum(len(request.context.tokens) for request in engine.running)
        live = written + sum(max(0, most.get(request.id, 0)) for request in engine.running)
        if written:
            kept = engine.num_cache_bytes / token
            worst = [max(worst[0], kept / live), max(worst[1], kept / written)]
    engine, sizes = made.engine(), []
    for number in range(1000 * repeats):
        engine.admit(ask(made, texts(64, number)[0], 8, "draftwise"))
        while engine.has_work:
            engine.step()
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    found = {"bytes over live": worst[0], "bytes over texts": worst[1]}
    return [found | {"MB more after 1,000": sizes[-1] - sizes[99]}]


PARTS = dict(together=together, arrivals=arriving, gap=gap, chat=chat, memory=memory)


def part(args: argparse.Namespace) -> dict[str, Any]:
    rows = PARTS[args.part](Speculator.from_pretrained(args.target, args.drafter), args.repeats)
    show(rows)
    return {args.part: rows}


if __name__ == "__main__":
    run(__doc__, dict.fromkeys(PARTS, part), target="zoo", drafter={"action": "append"}, repeats=5)
