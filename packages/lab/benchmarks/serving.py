"""A server with drafting and without, in one interleaved run: throughput, first tokens, overhead.

    python -m benchmarks serving [--target smollm2] [--at 1,4,16,64] [--rival] [--out FILE]
    python -m benchmarks serving --learn 1000        # the second thousand requests over the first

Starts ``draftwise serve`` for itself. Two sides are requests to the same server, which differ in
``draftwise.preset`` alone; with ``--rival`` the third is ``transformers serve`` with continuous
batching, on the same model, thread and precision. They take turns, round by round; no prompt comes
twice in a round, and no side drafts from the answers of another. Every answer is compared with the
plain one. Overhead: client's seconds that are no seconds of the engine, at one client. Idle: CPU
seconds of the server while nothing is asked.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from shared.results import save

from draftwise.bench.suites import load_suite
from draftwise.pool import resolve_target
from draftwise_lab.bench.load.client import Server
from draftwise_lab.bench.load.drive import Load, Volley, drive

Side = tuple[Server, dict[str, Any]]
"""Where requests go, and what they say besides."""


def ours(target: str, port: int) -> list[str]:
    """How our server is started."""
    command = [sys.executable, "-m", "draftwise", "serve", "--target", target, "--port", str(port)]
    return [*command, "--max-queue", "256"]


def theirs(folder: str, port: int) -> list[str]:
    """How transformers' own is."""
    program = str(Path(sys.executable).with_name("transformers"))
    # left to itself it takes most of the free memory for its cache, and 64 at once had it killed
    limits = ["--cb-block-size", "32", "--cb-num-blocks", "1024", "--cb-max-batch-tokens", "2048"]
    return [program, "serve", folder, "--port", str(port), "--device", "cpu", "--dtype", "float32",
            "--continuous-batching", *limits]  # fmt: skip


@contextmanager
def served(command: list[str], port: int, log: Any = None) -> Iterator[subprocess.Popen[bytes]]:
    """A server with one thread of torch, until the block ends. log: a file for what it says."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=log or subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        for _ in range(12_000):
            if process.poll() is not None:
                sys.exit(f"the server ended with status {process.returncode}: {' '.join(command)}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait()


def engine_seconds(url: str) -> float:
    """All seconds of the engine's phases so far."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.startswith("draftwise:phase_seconds_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate(volley: Volley) -> float:
    """Tokens a second."""
    return sum(shot.num_tokens for shot in volley.shots) / volley.took_s


def first(volley: Volley) -> float:
    """Median seconds to the first token."""
    return statistics.median(shot.first_s for shot in volley.shots)


def measure(
    sides: dict[str, Side],
    pids: dict[str, int],
    prompts: list[str],
    at: int,
    rounds: int,
    tokens: int,
) -> dict[str, Any]:
    """All sides at one concurrency, in turns; ratios of ours are medians over rounds.

    pids: of the server of each side, whose processor time is told beside the clock's.
    """
    common = {"max_tokens": tokens, "temperature": 0, "stream": True}
    asked = prompts[: max(8, at)]
    found: list[dict[str, Volley]] = []
    spent = dict.fromkeys(sides, 0.0)
    for number in range(rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        found.append({})
        for name in order:
            server, own = sides[name]
            if "draftwise" in own:  # a tenant of its own: it remembers no other side's answers
                own = {"draftwise": own["draftwise"] | {"tenant": f"{name}-{at}-{number}"}}
            before = cpu_seconds(pids[name])
            found[-1][name] = drive(server, asked, len(asked), Load(at), common | own)
            spent[name] += cpu_seconds(pids[name]) - before
    row: dict[str, Any] = {"at_once": at, "processor_s": spent}
    for name in list(sides)[1:]:
        speed = [rate(each["draftwise"]) / rate(each[name]) for each in found]
        wait = [first(each["draftwise"]) / first(each[name]) for each in found]
        row[f"over {name}"] = statistics.median(speed)
        row[f"over {name}, rounds"] = speed
        row[f"first token over {name}"] = statistics.median(wait)
    pairs = [
        pair for e in found for pair in zip(e["draftwise"].shots, e["plain"].shots, strict=True)
    ]
    wrong = sum(a.error != "" or b.error != "" or a.text != b.text for a, b in pairs)
    return row | {"answers": len(pairs), "answers_that_differ": wrong}


def learning(server: Server, prompts: list[str], tokens: int, num: int) -> dict[str, Any]:
    """Twice as many requests of one mix at one client: the rate of the second half over the first.

    The interval is of a bootstrap over blocks of fifty requests.
    """
    mix = random.Random(0).choices(prompts, k=num) * 2
    options = {"max_tokens": tokens, "temperature": 0}
    shots = drive(server, mix, len(mix), Load(1), options).shots
    halves = [
        [shot.num_tokens / shot.took_s for shot in half] for half in (shots[:num], shots[num:])
    ]
    blocks = [
        math.log(statistics.mean(halves[1][i : i + 50]) / statistics.mean(halves[0][i : i + 50]))
        for i in range(0, num, 50)
    ]
    draws = random.Random(1)
    means = sorted(statistics.mean(draws.choices(blocks, k=len(blocks))) for _ in range(2000))
    low, mid, high = (math.exp(x) for x in (means[50], statistics.mean(blocks), means[1949]))
    return {"requests": 2 * num, "second_over_first": mid, "low": low, "high": high}


def overhead(server: Server, prompts: list[str], tokens: int) -> float:
    """Share of a request's time, at one client, that is not the engine's."""
    options = {"max_tokens": tokens, "temperature": 0, "stream": True}
    before = engine_seconds(server.url)
    volley = drive(server, prompts, len(prompts), Load(1), options)
    took_s = sum(shot.took_s for shot in volley.shots)
    return 1 - (engine_seconds(server.url) - before) / took_s


def main() -> None:
    """Print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="zoo")
    parser.add_argument("--at", default="1,4,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--per-domain", type=int, default=2)
    parser.add_argument("--suite", default="zoo")
    parser.add_argument("--port", type=int, default=8399)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rival", action="store_true", help="measure transformers serve, too")
    parser.add_argument("--learn", type=int, default=0, help="requests of each half; nothing else")
    args = parser.parse_args()
    prompts = [item.turns[0] for item in load_suite(args.suite, args.per_domain).items]
    most = 1 if args.learn else max(map(int, args.at.split(",")))
    if most > len(prompts):
        parser.error(f"{most} at once need as many prompts; there are {len(prompts)}: --per-domain")
    with served(ours(args.target, args.port), args.port) as process, ExitStack() as more:
        server = server_of(args.port, Path(args.target).name)
        if args.learn:
            row = learning(server, prompts, args.tokens, args.learn)
            print(f"second half over first: {row['second_over_first']:.3f} "
                  f"({row['low']:.3f} to {row['high']:.3f})")  # fmt: skip
            save(args.out, {"learning": row})
            return
        pids = dict.fromkeys(("draftwise", "plain"), process.pid)
        sides: dict[str, Side] = {
            "draftwise": (server, {"draftwise": {}}),
            "plain": (server, {"draftwise": {"preset": "plain"}}),
        }
        if args.rival:
            folder = str(resolve_target(args.target)[0])
            rival = more.enter_context(served(theirs(folder, args.port + 1), args.port + 1))
            pids["transformers serve"] = rival.pid
            sides["transformers serve"] = (server_of(args.port + 1, folder), {})
        rows = [
            measure(sides, pids, prompts, int(at), args.rounds, args.tokens)
            for at in args.at.split(",")
        ]
        share, before = overhead(server, prompts[:16], args.tokens), cpu_seconds(process.pid)
        time.sleep(5)
        idle = (cpu_seconds(process.pid) - before) / 5
    told = [name for name, value in rows[0].items() if isinstance(value, (int, float))]
    table = Table(*told)
    for row in rows:
        table.add_row(*(f"{row[name]:.3g}" for name in told))
    Console().print(table)
    print(f"overhead {share:.1%} of a request's time at one client; idle {idle:.1%} of a core")
    save(args.out, {"rows": rows, "overhead": share, "idle": idle})


def server_of(port: int, model: str) -> Server:
    """One of this machine."""
    return Server(f"http://127.0.0.1:{port}", model, endpoint="completions")


if __name__ == "__main__":
    main()
