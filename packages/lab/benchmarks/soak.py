"""A crowd on a real server for long: 20,000 requests, rude ones among them; memory, threads, files.

The target is a bundled model that costs little (``--target zoo``: the largest one), for it is the
server that is tried. Right answers are those that the same server gives plainly, before. The
server has eight rows and a queue of sixteen, so that a crowd meets 429; and three drafters that
raise, each elsewhere, in the midst of everything. Prints what was wrong, and memory, threads and
open files of the server at each tenth; growth is that from the second tenth on, since a server
that has begun fills its pools (the suffix history is kept so small that it is full by then).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from shared.script import run
from shared.servers import ask_all, metric, num_open, served, state

from draftwise import registry, zoo
from draftwise.bench import load_suite
from draftwise.cli import main as draftwise
from draftwise.drafters import LookupDrafter, RetrievalSession
from serve.soak import KINDS, Soak

ROWS, QUEUE = 8, 16
DRAFTERS = ("zoo:python", "suffix:max_tokens=16384", "raises:at=commit,after=3000",
            "raises:at=peek,after=100", "raises:at=propose,after=50")  # fmt: skip
ANSWERS = {"whole": 1, "stream": 1, "slow reader": 1, "many": 3}
"""Kinds whose answers are read to their end, and how many a request has."""


class Raises(LookupDrafter):
    """Prompt lookup whose session raises at the ``after``-th call of one of its methods."""

    def __init__(self, name: str, at: str, after: int) -> None:
        super().__init__(name)
        self._at, self._after = at, after

    def start(self) -> RetrievalSession:
        session, calls = super().start(), itertools.count(1)
        sound = getattr(session, self._at)

        def method(*given: Any) -> Any:
            if next(calls) >= self._after:
                raise RuntimeError(f"no more of {self._at}")
            return sound(*given)

        setattr(session, self._at, method)
        return session


def listen(target: str, port: int) -> None:
    registry.DRAFTERS["raises"] = (Raises, {})
    with tempfile.TemporaryDirectory() as folder:
        more = [part for drafter in DRAFTERS for part in ("--drafter", drafter)]
        limits = ["--max-rows", str(ROWS), "--max-queue", str(QUEUE)]
        state = ["--state", f"{folder}/state.json"]
        source = str(zoo.drafter_paths().get(target, target))
        begin = ["draftwise", "serve", "--target", source, "--port", str(port)]
        begin += ["--served-model-name", target]
        sys.argv = [*begin, *more, *limits, *state]
        draftwise()


@contextmanager
def watched(port: int, pid: int, found: list[tuple[int, int]]) -> Iterator[None]:
    """Note answers on their way and resident KiB twice a second, until the block ends."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            found.append((num_open(port), state(pid)["own_kib"]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def growth(sizes: Sequence[int]) -> float:
    """Median of the last tenth over that of the second, less 1: bodies of 400 kB come and go."""
    tenth = len(sizes) // 10
    return median(sizes[-tenth:]) / median(sizes[tenth : 2 * tenth]) - 1


def right_answers(port: int, prompts: Sequence[str], tokens: int) -> dict[Any, str]:
    """What each prompt's answer of each length is, decoded plainly."""
    right: dict[Any, str] = {}
    for num in range(1, tokens + 1):
        body = {"max_tokens": num, "temperature": 0, "draftwise": {"preset": "plain"}}
        answers, _ = ask_all(port, prompts, 4, body)
        right |= {(p, num): found.text for p, found in zip(prompts, answers, strict=True)}
    return right


def verdict(soak: Soak, ended: float, states: Sequence[dict[str, int]]) -> dict[str, Any]:
    """What came back, and what the server kept. ended: answers that it counted."""
    begun, end = states[1], states[-1]
    return {
        "requests": sum(soak.done[kind] for kind in KINDS),
        "refused_as_busy": soak.done["busy"],
        "wrong": soak.wrong[:20],
        "num_wrong": len(soak.wrong),
        "answers_ended": round(ended),
        "answers_read": sum(soak.done[kind] * num for kind, num in ANSWERS.items()),
        "answers_left": sum(soak.done[kind] for kind in KINDS if kind.startswith("leaves")),
        "threads_left": end["threads"] - begun["threads"],
        "files_left": end["files"] - begun["files"],
    }


def crowd(args: argparse.Namespace) -> dict[str, Any]:
    if args.listen:
        listen(args.target, args.port)
        sys.exit()
    prompts = [item.turns[0] for item in load_suite("zoo", 1).items]
    command = [sys.executable, __file__, "--listen", "--target", args.target]
    states: list[dict[str, int]] = []
    opened: list[tuple[int, int]] = []
    with (
        tempfile.TemporaryFile("w+") as log,
        served([*command, "--port", str(args.port)], args.port, log) as process,
    ):
        right = right_answers(args.port, prompts, args.tokens)
        before = metric(args.port, "vllm:request_success_total")

        def tell(number: int) -> None:
            if number % max(1, args.num // 10) == 0:
                states.append(state(process.pid))
                print(number, states[-1], flush=True)

        soak = Soak(args.port, prompts, lambda p, n: right[p, n], 1, args.tokens, patience_s=1.0)
        start = time.monotonic()
        with watched(args.port, process.pid, opened):
            soak.run(args.num, args.clients, tell)
        while num_open(args.port):
            time.sleep(0.1)
        states.append(state(process.pid))
        ended = metric(args.port, "vllm:request_success_total") - before
        found = verdict(soak, ended, states)
        found["status_500"] = metric(args.port, "draftwise:http_requests_total", 'status="5')
        found |= {"most_open": max(num for num, _ in opened), "max_open": ROWS + QUEUE}
        found["memory_growth"] = growth([size for _, size in opened])
        found["took_s"] = round(time.monotonic() - start)
        process.terminate()
        found["exit_status"] = process.wait()
        log.seek(0)
        said = log.read()
    found["drafters_left_out"] = said.count("is left out")
    found["tracebacks"] = said.count("Traceback")
    return {"soak": found, "kinds": dict(soak.done), "states": states, "failed": bool(soak.wrong)}


if __name__ == "__main__":
    run(
        __doc__, crowd, num=20_000, clients=24, target="generalist", tokens=32, port=8398,
        listen={"action": "store_true", "help": "be the server, no more"},
    )  # fmt: skip
