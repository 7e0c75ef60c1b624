"""Hostile requests against one server with five honest clients: answers, delays, memory.

Starts ``draftwise serve`` on the bundled models. The five clients run alone before and after; the
median latency of these answers is the unloaded latency. In between, two attackers send every
hostile request (options, sizes, nesting, files and pipes, framing, disconnects) twice, and eight
connections send bodies at one byte per second, while the clients continue. Every answer is compared
with plain decoding by the same server. Memory is measured on the idle server. The benchmark fails
on a wrong answer, an answer under attack that takes ``MAX_DELAY_S`` longer than the unloaded
median, a status of 500 or more other than 503, a traceback, or ``MAX_GROWTH_KIB`` more memory after
the second attack than after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from typing import Any

from shared.script import run
from shared.servers import Answer, ask, num_open, served, state

from draftwise.bench.suites import load_suite

CLIENTS, ATTACKERS, MAX_DELAY_S, MAX_GROWTH_KIB = 5, 2, 2.0, 16 * 1024
DONE, CHAT = "/v1/completions", "/v1/chat/completions"
MANY = 400_000
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

Attack = tuple[str, str, bytes]
"""Kind; path, or how the connection is used (``raw``, ``leave``...); body or raw bytes."""

POLICIES = (
    "router:plan=0,examples={}", "router:plan=0, examples={}", "router: examples={}",
    "delayed: base=router:examples={}", "delayed:base=delayed: base=router: examples={}",
    "one-plan: router:examples={}", "copies:router: examples={}",
    "batched: base=router:examples={}",
)  # fmt: skip
NUMBERS = (
    "thompson-gaussian:prior_mean=nan", "thompson-gaussian:prior_mean=inf",
    "thompson-gaussian:prior_sd=1e308", "thompson-gaussian:noise_sd=1e308",
    "thompson-gaussian:prior_sd=inf", "petc:c=1e308", "petc:c=inf", "petc:num_tokens=1" + "0" * 20,
    "ucb1:beta=nan", "ucb1:beta=1e308", "exp3:gamma=nan", "exp3:gamma=0", "exp3:gamma=1e-320",
    "hedge:eta=inf", "hedge:eta=1e308", "discounted-ucb:discount=1e-320", "goodput:prior=1e-320",
    "goodput:discount=1e-320", "sliding-ucb:window=600000", "sliding-ucb:window=100000000000",
    "sliding-ucb:window=4096", "router:num_cells=30000000", "router:num_cells=4096",
    "delayed:rounds=99999999999", "delayed:rounds=4096", "batched:skip=1" + "0" * 26,
    "sequential-halving:budget=1" + "0" * 22, "sequential-halving:period=1" + "0" * 26,
    "fixed:plan=-1", "fixed:plan=9999", "one-plan:", "one-plan:one-plan",
    "copies:copies:copies:exp3",
    "copies:copies:copies:copies:exp3", "delayed:delayed:delayed:delayed", "draft-all:x=1", "",
)  # fmt: skip
FIELDS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 10**30}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"n": 65}, {"n": 0},
    {"temperature": 1e-320}, {"temperature": 1e308}, {"temperature": -1}, {"top_p": 0},
    {"top_p": 1e-320}, {"top_k": 2**31}, {"min_p": 2}, {"repetition_penalty": 1e-300},
    {"presence_penalty": 1e300}, {"seed": 2**64}, {"logprobs": 10**9}, {"logit_bias": {"-1": 1}},
    {"logit_bias": {"01": 1}}, {"logit_bias": {"9" * 4000: 1}}, {"stop": "x" * 10**6},
    {"stop": [""]}, {"stop_token_ids": [2**31]}, {"user": "x" * 10**6},
    {"model": "../../etc/passwd"},
    {"model": "\0"}, {"prompt": 5}, {"prompt": []}, {"prompt": [[]]}, {"prompt": [True]},
    {"prompt": [10**9]}, {"prompt": "\ud800"}, {"prompt": "\0"}, {"best_of": 10**9},
    {"draftwise": {"deadline_s": 1e-300}}, {"draftwise": {"priority": 10**9}},
    {"draftwise": {"label": "../../etc/passwd", "tenant": "../\0"}}, {"draftwise": {"preset": "x"}},
    {"draftwise": {"plans": [129]}}, {"draftwise": {"plans": [1, 1]}}, {"draftwise": {"x": 1}},
    {"draftwise": {"plans": list(range(1, 129))}}, {"draftwise": {"label": "\ud800"}},
)  # fmt: skip
SIZES: tuple[dict[str, Any], ...] = (
    {"prompt": "a" * 7_000_000}, {"prompt": [1] * 2_000_000}, {"prompt": [-1] * MANY},
    {"prompt": [["a"]] * MANY}, {"prompt": ["a"] * MANY}, {"prompt": [[1]] * MANY},
    {"stop": [1] * MANY}, {"stop_token_ids": ["x"] * MANY}, {"draftwise": {"plans": [1] * MANY}},
    {"draftwise": {"plans": ["x"] * MANY}}, {"logit_bias": {f"x{i}": 1 for i in range(MANY // 2)}},
    {"logit_bias": {str(i): 1 for i in range(1024)}}, {f"f{i}": 1 for i in range(MANY // 2)},
    {"structured_outputs": {"choice": [1] * MANY}},
    {"metadata": {f"f{i}": 1 for i in range(MANY // 2)}},
    {"structured_outputs": {"json": {"enum": list(range(100_000))}}},
    {"structured_outputs": {"regex": "(a|b)*a(a|b){25}c"}},
    {"structured_outputs": {"regex": "((a{1,99}){1,99}){1,99}"}},
    {"structured_outputs": {"grammar": "start: start start | /a/ | /a/"}},
    {"structured_outputs": {"json": {"type": "array", "minItems": 10**6}}},
    {"structured_outputs": {"regex": "(" * 9000}}, {"prompt": ["a"] * 200},
    {"n": 64, "prompt": ["a"] * 64},
)  # fmt: skip
USER = {"role": "user", "content": "hi"}
CHATS: tuple[dict[str, Any], ...] = (
    {"messages": [1] * MANY}, {"messages": [{}] * 9000}, {"messages": [USER] * 9000},
    {"messages": [{"role": "user", "content": [1] * MANY}]},
    {"messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]},
    {"messages": [USER], "tools": [[]] * MANY}, {"messages": [{"role": "\ud800", "content": "x"}]},
    {"messages": [USER], "tool_choice": "\ud800"},
    {"messages": [{"role": "user", "content": "\0"}]},
    {"messages": [USER], "top_logprobs": 10**9, "logprobs": True}, {"messages": 5},
)  # fmt: skip


def nesting() -> Iterator[Attack]:
    for depth in (500, 5_000, 200_000):
        deep = "[" * depth + "]" * depth
        for field in ("metadata", "prompt", "stop", "draftwise"):
            text = '{"max_tokens": 1, "prompt": "a", "%s": %s}' % (field, deep)  # noqa: UP031
            yield "nesting", DONE, text.encode()
        schema = '{"items":' * depth + "{}" + "}" * depth
        text = '{"prompt": "a", "max_tokens": 1, "structured_outputs": {"json": ' + schema + "}}"
        yield "nesting", DONE, text.encode()
        for arguments in (deep, "[" * depth, '{"a":' * depth):
            call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
            called = [USER, {"role": "assistant", "tool_calls": [call]}, USER]
            yield "nesting", CHAT, json.dumps({"messages": called, "max_tokens": 1}).encode()
    for raw in (b"[" * 100_000, b'{"a":' * 100_000, b"", b"null", b"\xff\xfe", b'"x"', b"{"):
        yield "nesting", DONE, raw


def framing() -> Iterator[Attack]:
    """Yield bytes that are almost valid HTTP."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    head, get = HEAD, b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    size, chunked = b"Content-Length: %d\r\n" % len(body), b"Transfer-Encoding: chunked\r\n"
    yield from (
        ("framing", "raw", raw)
        for raw in (
            head + size + chunked + b"\r\n0\r\n\r\n" + get + b"\r\n",
            head + size + b"Content-Length: 3\r\n\r\n" + body,
            head + b"Content-Length: +5\r\n\r\n" + body,
            head + b"Content-Length: -5\r\n\r\n" + body,
            head + b"Content-Length: 99999999999999999999999\r\n\r\n" + body,
            head + b"Transfer-Encoding: xchunked\r\n\r\n" + body,
            head + b"Transfer-Encoding: chunked, identity\r\n\r\n" + body,
            head + chunked + b"\r\nffffffffffffffff\r\n" + body,
            head + chunked + b"\r\n-1\r\n" + body,
            head + chunked + b"\r\nzz\r\n" + body,
            head + chunked + b"\r\n%x;a=b\r\n" % len(body) + body + b"\r\n0\r\nX: y\r\n\r\n",
            get.replace(b"Host:", b"Host :") + b"\r\n",
            get + b"A: b\r\n  Content-Length: 5\r\n\r\n",
            get + b"A: " + b"a" * 1_000_000 + b"\r\n\r\n",
            get + b"".join(b"A%d: b\r\n" % i for i in range(10_000)) + b"\r\n",
            b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /stats?x=" + b"9" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
            head.replace(b"localhost", b"evil.example") + size + b"\r\n" + body,
            (get + b"\r\n") * 50,
        )
    )


def attacks(pipe: Path) -> list[Attack]:
    """All attacks. pipe: a FIFO, whose opening blocks."""
    ask = {"prompt": "a", "max_tokens": 8, "temperature": 0}
    places = (pipe, "/etc/shadow", "/dev/zero", "/proc/self/mem")
    policies = [policy.format(place) for place in places for policy in POLICIES]
    named = [("files", name) for name in policies] + [("options", name) for name in NUMBERS]
    asked: list[tuple[str, dict[str, Any]]]
    asked = [(kind, {"draftwise": {"policy": name}}) for kind, name in named]
    asked += [("options", fields) for fields in FIELDS]
    found = [(kind, DONE, json.dumps(ask | fields).encode()) for kind, fields in asked]
    for word in (b"NaN", b"Infinity", b"1e400", b"9" * 5000):
        found.append(("options", DONE, b'{"prompt": "a", "temperature": ' + word + b"}"))
    big = [(DONE, ask | fields) for fields in SIZES]
    big += [(CHAT, {"max_tokens": 1} | body) for body in CHATS]
    big += [("/tokenize", {"prompt": "a" * 7_000_000}), ("/detokenize", {"tokens": ["x"] * MANY})]
    found += [("sizes", path, json.dumps(body).encode()) for path, body in big]
    found += [("sizes", DONE, b" " * 9_000_000), *nesting(), *framing()]
    long = ask | {"max_tokens": 1500, "ignore_eos": True, "stream": True}
    for how in ("close", "reset", "half-close", "at once"):
        for more in ({}, {"n": 4}, {"stream": False}):
            found.append(("disconnects", how, json.dumps(long | more).encode()))
    return found


def post(port: int, path: str, raw: bytes) -> int:
    """Send a POST request; return the status, or 0 if the server closed the connection."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("POST", path, raw, {"Content-Type": "application/json"})
            return connection.getresponse().status
        except (HTTPException, ConnectionError):
            return 0


def send(port: int, _: str, raw: bytes) -> int:
    """Send raw bytes; return the largest status of any response within two seconds, or 0."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as made:
        said = b""
        with suppress(OSError):
            made.sendall(raw)
            while part := made.recv(65536):
                said += part
    lines = [line.split() for line in said.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return max((int(line[1]) for line in lines), default=0)


def leave(port: int, how: str, raw: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as made:
        made.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        if how != "at once":
            time.sleep(0.3)
        if how == "reset":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half-close":
            made.shutdown(socket.SHUT_WR)
            time.sleep(0.3)
    return 0


def slowly(port: int, over: threading.Event) -> None:
    """Send a body at one byte per second, repeatedly, until ``over`` is set."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    while not over.is_set():
        with socket.create_connection(("127.0.0.1", port), timeout=10) as made, suppress(OSError):
            made.sendall(head)
            while not over.wait(1.0):
                made.sendall(b" ")


class Attackers:
    """Sends attacks from several threads. State: counts of the responses' statuses."""

    def __init__(self, port: int) -> None:
        self._port, self._lock = port, threading.Lock()
        self.statuses: Counter[int] = Counter()
        self.bad: list[str] = []
        self.slowest: list[tuple[float, str]] = []

    def send(self, number: int, attack: Attack) -> None:
        (kind, where, raw), began = attack, time.monotonic()
        how = {"framing": send, "disconnects": leave}.get(kind, post)
        status = how(self._port, where, raw)
        with self._lock:
            took = round(time.monotonic() - began, 2)
            about = f"{kind} {where} {raw[:100]!r}: {status}"
            self.slowest = sorted([*self.slowest, (took, about)], reverse=True)[:5]
            self.statuses[status] += 1
            if status >= 500 and status != 503:
                self.bad.append(f"{number} {kind} {where} {raw[:200]!r}: {status}")


class Honest:
    """Clients that repeat the same prompts. State: seconds, and wrong answers."""

    def __init__(self, port: int, prompts: list[str], tokens: int) -> None:
        self._port, self._prompts, self._tokens = port, prompts, tokens
        self._right = [self._ask(prompt, preset="plain", private=True).text for prompt in prompts]
        self.wrong: list[str] = []

    def _ask(self, prompt: str, **fields: Any) -> Answer:
        body = {"prompt": prompt, "max_tokens": self._tokens, "temperature": 0, "ignore_eos": True}
        return ask(self._port, {**body, "draftwise": fields})

    def ask_until(self, over: threading.Event, most: int) -> list[float]:
        """Run five clients until the event or ``most`` answers; return each answer's seconds."""

        def client(number: int) -> list[float]:
            seconds = []
            for turn in range(most):
                if over.is_set():
                    break
                index = (number + turn * CLIENTS) % len(self._prompts)
                found = self._ask(self._prompts[index], tenant=f"client-{number}")
                seconds.append(found.took_s)
                if found.text != self._right[index]:
                    said = found.text or found.error
                    self.wrong.append(f"{self._prompts[index]!r}: {said[:200]!r}")
            return seconds

        with ThreadPoolExecutor(CLIENTS) as pool:
            return [s for own in pool.map(client, range(CLIENTS)) for s in own]


def settled(port: int, pid: int) -> int:
    """The server's memory in KiB once it is idle and has had time to free memory."""
    while num_open(port):
        time.sleep(0.1)
    time.sleep(3.0)
    return state(pid)["own_kib"]


def attack(port: int, honest: Honest, attackers: Attackers, todo: list[Attack]) -> list[float]:
    """Send all attacks once, while slow bodies are open; return the honest answers' seconds."""
    over = threading.Event()
    with ThreadPoolExecutor(ATTACKERS) as attacking, ThreadPoolExecutor(9) as pool:
        slow = [pool.submit(slowly, port, over) for _ in range(8)]
        asking = pool.submit(honest.ask_until, over, 10**6)
        list(attacking.map(attackers.send, count(), todo))
        over.set()
        for one in slow:
            one.result()
        return asking.result()


def times(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 3), "most": round(max(seconds), 3)}


def measure(port: int, pid: int, tokens: int, pipe: Path) -> dict[str, Any]:
    """Run honest clients alone, under two attacks, and alone again."""
    never, todo = threading.Event(), attacks(pipe)
    honest = Honest(port, [item.text for item in load_suite("zoo", 2).items], tokens)
    honest.ask_until(never, 8)  # warm-up: one-time allocations happen here
    alone, kib = honest.ask_until(never, 12), [settled(port, pid)]
    attackers, under = Attackers(port), list[float]()
    for _ in range(2):
        under += attack(port, honest, attackers, todo)
        kib.append(settled(port, pid))
    alone_again = honest.ask_until(never, 12)
    return {
        "hostile_requests": len(todo),
        "by_kind": dict(Counter(kind for kind, _, _ in todo)),
        "statuses": {str(key): num for key, num in sorted(attackers.statuses.items())},
        "server_errors": attackers.bad,
        "slowest_attacks": attackers.slowest,
        "honest_answers": len(alone) + len(under) + len(alone_again),
        "honest_answers_attacked": len(under),
        "num_wrong": len(honest.wrong),
        "wrong": honest.wrong[:5],
        "latency_s": {"alone": times(alone), "attacked": times(under), "after": times(alone_again)},
        "most_delay_s": round(max(under) - statistics.median(alone + alone_again), 3),
        "most_delay_over_slowest_alone_s": round(max(under) - max(alone + alone_again), 3),
        "own_kib": dict(zip(("before", "after_one", "after_two"), kib, strict=True)),
    }


def attacked(args: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "draftwise",
        "serve",
        "--target",
        "zoo",
        "--port",
        str(args.port),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as log,
        served(command, args.port, log) as process,
    ):
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        found = measure(args.port, process.pid, args.tokens, pipe)
        process.terminate()
        found["exit_status"] = process.wait()
        log.seek(0)
        found["tracebacks"] = log.read().count("Traceback")
    growth = found["own_kib"]["after_two"] - found["own_kib"]["after_one"]
    found["memory_growth_kib"] = growth
    is_bad = bool(found["num_wrong"] or found["server_errors"] or found["tracebacks"])
    is_bad |= found["most_delay_s"] > MAX_DELAY_S or growth > MAX_GROWTH_KIB
    return {"hostile": found, "failed": is_bad}


if __name__ == "__main__":
    run(__doc__, attacked, tokens=8, port=8397)
