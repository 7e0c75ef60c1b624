"""A crowd on a real server for long: 20,000 requests, rude ones among them; memory, threads, files.

    python benchmarks/soak.py [--num 20000] [--target zoo] [--clients 32]

Right answers are those that the same server gives plainly, before. Prints what was wrong, and
memory, threads and open files of the server at each tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from serving import served

from draftwise.bench.load.client import Server
from draftwise.bench.load.drive import Load, drive
from draftwise.bench.suites import load_suite
from serve.soak import Soak


def state(pid: int) -> dict[str, int]:
    """Resident KiB, threads and open files of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {
        "rss_kib": int(found["VmRSS"].split()[0]),
        "threads": int(found["Threads"]),
        "files": files,
    }


def main() -> None:
    """Print a line a tenth and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--target", default="zoo")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--port", type=int, default=8398)
    args = parser.parse_args()
    prompts = [item.turns[0] for item in load_suite("zoo", 1).items]
    with served(args.target, args.port) as process:
        server = Server(f"http://127.0.0.1:{args.port}", Path(args.target).name)
        right: dict[tuple[str, int], str] = {}
        for tokens in range(1, args.tokens + 1):
            fields = {"max_tokens": tokens, "temperature": 0, "draftwise": {"preset": "plain"}}
            shots = drive(server, prompts, len(prompts), Load(8), fields).shots
            right |= {(prompts[shot.prompt], tokens): shot.text for shot in shots}
        states = [state(process.pid)]

        def tell(number: int) -> None:
            if number % max(1, args.num // 10) == 0:
                states.append(state(process.pid))
                print(number, states[-1], flush=True)

        soak = Soak(args.port, prompts, lambda p, n: right[p, n], 1, args.tokens)
        soak.run(args.num, args.clients, tell)
        states.append(state(process.pid))
    print(json.dumps({"done": dict(soak.done), "wrong": soak.wrong[:20], "states": states}))
    if soak.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
