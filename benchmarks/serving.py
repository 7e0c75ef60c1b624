"""A server with drafting and without, in one interleaved run: throughput, first tokens, overhead.

    python benchmarks/serving.py [--target smollm2] [--at 1,4,16,64] [--out FILE]

Starts ``draftwise serve`` for itself. The two sides are requests to the same server, which differ
in ``draftwise.preset`` alone; they take turns, round by round. Every answer is compared with the
plain one. Overhead: client's seconds that are no seconds of the engine, at one client. Idle: CPU
seconds of the server while nothing is asked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.results import save

from draftwise.bench.load.client import Server
from draftwise.bench.load.drive import Load, Volley, drive
from draftwise.bench.suites import load_suite

SIDES: dict[str, dict[str, Any]] = {"draftwise": {}, "plain": {"draftwise": {"preset": "plain"}}}


@contextmanager
def served(target: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server, until the block ends."""
    command = [sys.executable, "-m", "draftwise", "serve", "--target", target, "--port", str(port)]
    process = subprocess.Popen([*command, "--max-queue", "256"], stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
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
    server: Server, prompts: list[str], at: int, rounds: int, tokens: int
) -> dict[str, Any]:
    """Both sides at one concurrency, in turns; ratios are medians over rounds."""
    options = {"max_tokens": tokens, "temperature": 0, "stream": True}
    asked, speed, wait, wrong = (prompts * at)[: max(len(prompts), at)], [], [], 0
    for number in range(rounds):
        order = list(SIDES) if number % 2 else list(reversed(SIDES))
        load = Load(concurrency=at)
        found = {s: drive(server, asked, len(asked), load, options | SIDES[s]) for s in order}
        ours, plain = found["draftwise"], found["plain"]
        speed.append(rate(ours) / rate(plain))
        wait.append(first(ours) / first(plain))
        pairs = zip(ours.shots, plain.shots, strict=True)
        wrong += sum(a.error != "" or b.error != "" or a.text != b.text for a, b in pairs)
    row = {"at_once": at, "times_plain": statistics.median(speed), "rounds": [*speed]}
    return row | {"first_token_ratio": statistics.median(wait), "answers_that_differ": wrong}


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
    args = parser.parse_args()
    prompts = [item.turns[0] for item in load_suite(args.suite, args.per_domain).items]
    with served(args.target, args.port) as process:
        url = f"http://127.0.0.1:{args.port}"
        server = Server(url, Path(args.target).name, endpoint="completions")
        rows = [
            measure(server, prompts, int(at), args.rounds, args.tokens) for at in args.at.split(",")
        ]
        share, before = overhead(server, prompts, args.tokens), cpu_seconds(process.pid)
        time.sleep(5)
        idle = (cpu_seconds(process.pid) - before) / 5
    for row in rows:
        print(
            f"{row['at_once']:3d} at once: {row['times_plain']:.2f} times plain, first token "
            f"{row['first_token_ratio']:.2f}, {row['answers_that_differ']} answers differ"
        )
    print(f"overhead {share:.1%} of a request's time at one client; idle {idle:.1%} of a core")
    save(args.out, {"rows": rows, "overhead": share, "idle": idle})


if __name__ == "__main__":
    main()
