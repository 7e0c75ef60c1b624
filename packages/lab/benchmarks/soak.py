"""A crowd on a real server for long: 20,000 requests, rude ones among them; memory, threads, files.

    python -m benchmarks soak [--num 20000] [--clients 24] [--out FILE]

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
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

from serving import served
from shared.results import save

from draftwise import registry, zoo
from draftwise.bench import load_suite
from draftwise.cli import main as draftwise
from draftwise.drafters import LookupDrafter, RetrievalSession
from draftwise_lab.bench import Load, Server, drive
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
        """A session that counts."""
        session, calls = super().start(), itertools.count(1)
        sound = getattr(session, self._at)

        def method(*given: Any) -> Any:
            if next(calls) >= self._after:
                raise RuntimeError(f"no more of {self._at}")
            return sound(*given)

        setattr(session, self._at, method)
        return session


def listen(target: str, port: int) -> None:
    """Be the server."""
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


def state(pid: int) -> dict[str, int]:
    """Resident KiB, threads and open files of a process.

    Of memory only the process's own: pages of files come and go with what else the machine does.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {
        "own_kib": int(found["RssAnon"].split()[0]),
        "threads": int(found["Threads"]),
        "files": files,
    }


def metric(url: str, name: str, labels: str = "") -> float:
    """The sum over all series of a name whose labels match."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    return sum(float(value) for found, value in lines if re.search(labels, found))


def num_open(url: str) -> int:
    """Answers on their way."""
    return round(sum(metric(url, f"vllm:num_requests_{what}") for what in ("running", "waiting")))


@contextmanager
def watched(url: str, pid: int, found: list[tuple[int, int]]) -> Iterator[None]:
    """Note answers on their way and resident KiB twice a second, until the block ends."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            found.append((num_open(url), state(pid)["own_kib"]))

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


def right_answers(server: Server, prompts: Sequence[str], tokens: int) -> dict[Any, str]:
    """What each prompt's answer of each length is, decoded plainly."""
    right: dict[Any, str] = {}
    for num in range(1, tokens + 1):
        fields = {"max_tokens": num, "temperature": 0, "draftwise": {"preset": "plain"}}
        shots = drive(server, prompts, len(prompts), Load(4), fields).shots
        right |= {(prompts[shot.prompt], num): shot.text for shot in shots}
    return right


def verdict(
    url: str, soak: Soak, before: float, states: Sequence[dict[str, int]]
) -> dict[str, Any]:
    """What the row of the issue asks for. before: answers that had ended when the soak began."""
    ended = round(metric(url, "vllm:request_success_total") - before)
    read = sum(soak.done[kind] * num for kind, num in ANSWERS.items())
    begun, end = states[1], states[-1]
    return {
        "requests": sum(soak.done[kind] for kind in KINDS),
        "refused_as_busy": soak.done["busy"],
        "wrong": soak.wrong[:20],
        "num_wrong": len(soak.wrong),
        "answers_ended": ended,
        "answers_read": read,
        "answers_left": sum(soak.done[kind] for kind in KINDS if kind.startswith("leaves")),
        "status_500": metric(url, "draftwise:http_requests_total", 'status="5'),
        "threads_left": end["threads"] - begun["threads"],
        "files_left": end["files"] - begun["files"],
    }


def main() -> None:
    """Print a line a tenth and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--target", default="generalist")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--port", type=int, default=8398)
    parser.add_argument("--listen", action="store_true", help="be the server, no more")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.listen:
        listen(args.target, args.port)
        return
    prompts = [item.turns[0] for item in load_suite("zoo", 1).items]
    command = [sys.executable, __file__, "--listen", "--target", args.target]
    url, states, opened = f"http://127.0.0.1:{args.port}", [], list[tuple[int, int]]()
    with (
        tempfile.TemporaryFile("w+") as log,
        served([*command, "--port", str(args.port)], args.port, log) as process,
    ):
        right = right_answers(Server(url, args.target), prompts, args.tokens)
        before = metric(url, "vllm:request_success_total")

        def tell(number: int) -> None:
            if number % max(1, args.num // 10) == 0:
                states.append(state(process.pid))
                print(number, states[-1], flush=True)

        soak = Soak(args.port, prompts, lambda p, n: right[p, n], 1, args.tokens, patience_s=1.0)
        start = time.monotonic()
        with watched(url, process.pid, opened):
            soak.run(args.num, args.clients, tell)
        while num_open(url):
            time.sleep(0.1)
        states.append(state(process.pid))
        found = verdict(url, soak, before, states)
        found |= {"most_open": max(num for num, _ in opened), "max_open": ROWS + QUEUE}
        found["memory_growth"] = growth([size for _, size in opened])
        found["took_s"] = round(time.monotonic() - start)
        process.terminate()
        found["exit_status"] = process.wait()
        log.seek(0)
        said = log.read()
    found["drafters_left_out"] = said.count("is left out")
    found["tracebacks"] = said.count("Traceback")
    save(args.out, {"soak": found, "kinds": dict(soak.done), "states": states})
    if soak.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
