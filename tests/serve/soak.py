"""Many clients, some of them misbehaving; all others get their complete, correct answers.

Run by a test on an engine without a model.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any

PATH = "/v1/completions"
KINDS = {
    "whole": 30,
    "stream": 30,
    "leaves in mid-stream": 8,
    "leaves at once": 4,
    "slow reader": 2,
    "malformed": 5,
    "wrong type": 5,
    "not UTF-8": 4,
    "enormous": 2,
    "unknown field": 5,
    "many": 5,
}
"""Kinds of client behaviour, with their weights."""
_BAD: dict[str, Sequence[bytes]] = {
    "malformed": [b"", b"{", b'{"prompt": ', b"[]", b"nonsense", b'{"prompt": "a"}}'],
    "wrong type": [
        b'{"prompt": 7}', b'{"prompt": "a", "max_tokens": "many"}', b'{"prompt": null}',
        b'{"prompt": "a", "stop": 5}', b'{"prompt": "a", "temperature": [1]}',
    ],
    "not UTF-8": [b'{"prompt": "\xff\xfe"}', b"\x80abc"],
    "unknown field": [b'{"prompt": "a", "frob": 1}', b'{"prompt": "a", "draftwise": {"x": 1}}'],
}  # fmt: skip


class Soak:
    """Sends requests of all kinds. expected: (prompt, tokens) to the text of the right answer.

    patience_s: wait before a retry when the queue is full.

    State: the answers by kind, and the errors found.
    """

    def __init__(
        self,
        port: int,
        prompts: Sequence[str],
        expected: Callable[[str, int], str],
        seed: int = 0,
        max_tokens: int = 40,
        fields: dict[str, Any] | None = None,
        patience_s: float = 0.05,
    ) -> None:
        self._port, self._prompts, self._expected = port, prompts, expected
        self._seed, self._max_tokens = seed, max_tokens
        self._fields = {"temperature": 0, **(fields or {})}
        self._lock, self._patience_s = threading.Lock(), patience_s
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, num: int, num_clients: int, tell: Callable[[int], None] = lambda n: None) -> None:
        """Send ``num`` requests, ``num_clients`` at a time."""
        numbers = iter(range(num))

        def client() -> None:
            while True:
                with self._lock:
                    number = next(numbers, None)
                if number is None:
                    return
                self._one(number)
                tell(number)

        threads = [threading.Thread(target=client) for _ in range(num_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, number: int) -> None:
        rng = random.Random(self._seed * 1_000_003 + number)
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        for _ in range(1000):  # retry while the queue is full
            try:
                wrong = self._play(kind, rng)
            except (OSError, HTTPException, ValueError, KeyError) as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong != "busy":
                break
            with self._lock:
                self.done["busy"] += 1
            time.sleep(self._patience_s)
        with self._lock:
            self.done[kind] += 1
            if wrong:
                self.wrong.append(f"{kind} {number}: {wrong}")

    def _play(self, kind: str, rng: random.Random) -> str:
        """Send one request; returns what was wrong with the answer, or nothing."""
        prompt, num = rng.choice(self._prompts), rng.randint(1, self._max_tokens)
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": num, **self._fields}
        if kind in _BAD:
            return _is(400, self._post(rng.choice(_BAD[kind])))
        if kind == "enormous":
            return _is(400, self._post({**body, "prompt": "ab" * 200_000}))
        if kind in {"leaves in mid-stream", "leaves at once", "slow reader"}:
            return self._rude(kind, body, rng)
        if kind == "many":
            prompts = [rng.choice(self._prompts) for _ in range(3)]
            status, raw = self._post({**body, "prompt": prompts})
            if status != 200:
                return _is(200, (status, raw))
            texts = [choice["text"] for choice in json.loads(raw)["choices"]]
            return _same(texts, [self._expected(one, num) for one in prompts])
        status, raw = self._post({**body, "stream": kind == "stream"})
        if status != 200:
            return _is(200, (status, raw))
        text = _streamed(raw) if kind == "stream" else json.loads(raw)["choices"][0]["text"]
        return _same(text, self._expected(prompt, num))

    def _post(self, body: Any) -> tuple[int, bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            connection.request("POST", PATH, raw, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _rude(self, kind: str, body: dict[str, Any], rng: random.Random) -> str:
        raw = json.dumps({**body, "stream": kind != "leaves at once"}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", self._port), 60) as client:
            client.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
            if kind == "leaves at once":
                return ""
            head = client.recv(rng.choice([16, 400]))
            if b" 200 " not in head:
                return "busy" if b" 429 " in head else f"{head!r}"
            if kind != "slow reader":
                return ""
            got = b""
            while b"[DONE]" not in got and (part := client.recv(200)):
                got += part
                time.sleep(0.002)
        return "" if b"[DONE]" in got else "a slow reader was cut off"


def _is(status: int, said: tuple[int, bytes]) -> str:
    if said[0] in {429, 503} and status == 200:
        return "busy"
    return "" if said[0] == status else f"{said[0]}, not {status}: {said[1][:200]!r}"


def _same(found: Any, expected: Any) -> str:
    return "" if found == expected else f"{found!r}, not {expected!r}"


def _streamed(raw: bytes) -> str:
    events = [line[6:] for line in raw.decode().split("\n\n") if line]
    if events[-1] != "[DONE]":
        raise ValueError("the stream has no end")
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
