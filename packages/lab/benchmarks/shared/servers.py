"""Single-threaded servers, timed requests to them, and their memory and metrics."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any


@contextmanager
def served(command: list[str], port: int, log: Any = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with one torch thread until the block ends. log: a file for its output."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=log or subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
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


@dataclass
class Answer:
    """A response. first_s, took_s: seconds from sending to the first chunk, and to the end."""

    text: str = ""
    num_tokens: int = 0
    first_s: float = 0.0
    took_s: float = 0.0
    error: str = ""


def ask(port: int, body: Mapping[str, Any]) -> Answer:
    """Request one streamed completion; failures are in ``error``."""
    found, start = Answer(), time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    options = {"stream": True, "stream_options": {"include_usage": True}, **body}
    head = {"Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/completions", json.dumps(options), head)
        response = connection.getresponse()
        if response.status != 200:
            found.error = f"HTTP {response.status}: {response.read(500)!r}"
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[5:])
            text = "".join(choice.get("text") or "" for choice in event.get("choices") or ())
            found.text += text
            found.first_s = found.first_s or (time.perf_counter() - start if text else 0.0)
            found.num_tokens = (event.get("usage") or {}).get("completion_tokens", found.num_tokens)
            found.error = str(event.get("error") or found.error)
    except (OSError, HTTPException, ValueError) as error:
        found.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    found.took_s = time.perf_counter() - start
    return found


def ask_all(
    port: int, prompts: Sequence[str], at_once: int, body: Mapping[str, Any]
) -> tuple[list[Answer], float]:
    """Answer all prompts in order, ``at_once`` at a time; return answers and total seconds."""
    start = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(lambda prompt: ask(port, {**body, "prompt": prompt}), prompts))
    return found, time.perf_counter() - start


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def state(pid: int) -> dict[str, int]:
    """KiB of private memory, threads and open files of a process. Cached file pages do not count,
    because they depend on other programs."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    own_kib = int(found["RssAnon"].split()[0])
    return {"own_kib": own_kib, "threads": int(found["Threads"]), "files": files}


def metric(port: int, name: str) -> float:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return sum(map(float, re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE)))


def num_open(port: int) -> int:
    return round(sum(metric(port, f"vllm:num_requests_{what}") for what in ("running", "waiting")))
