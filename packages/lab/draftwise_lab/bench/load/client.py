"""One request to an OpenAI-compatible server, timed where its bytes arrive.

Plain ``http.client`` in a thread for each request: nothing between the socket and the clock but
the parsing of a line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from draftwise.types import DraftwiseError

COMPLETIONS, CHAT = "completions", "chat"


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go. url: with or without ``/v1``. endpoint: ``completions`` or ``chat``."""

    url: str
    model: str = ""
    key: str = ""
    endpoint: str = COMPLETIONS
    timeout_s: float = 600.0

    @property
    def path(self) -> str:
        """Of the endpoint."""
        base = urlsplit(self.url).path.rstrip("/").removesuffix("/v1")
        return f"{base}/v1/{'chat/completions' if self.endpoint == CHAT else 'completions'}"

    def connect(self) -> HTTPConnection:
        """A connection of its own. Raises DraftwiseError for a url that is none."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise DraftwiseError(f"--url {self.url!r}: write http://HOST:PORT")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname, parts.port, timeout=self.timeout_s)

    def headers(self) -> dict[str, str]:
        """Of every request."""
        keyed = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {"Content-Type": "application/json", **keyed}

    def models(self) -> list[str]:
        """What it serves. Raises DraftwiseError where it does not say so."""
        base = self.path.partition("/v1/")[0]
        connection = self.connect()
        try:
            connection.request("GET", f"{base}/v1/models", headers=self.headers())
            body = json.loads(connection.getresponse().read())
            return [str(model["id"]) for model in body["data"]]
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            raise DraftwiseError(
                f"{self.url} does not say which models it serves ({error}): is it there?"
            ) from error
        finally:
            connection.close()


@dataclass(slots=True)
class Shot:
    """One request as it went. Times are seconds of one monotonic clock.

    wanted_s: when it should have been sent. chunks_s: when parts of the answer came. num_tokens:
    as the server counts them, or the parts where it does not. error: empty if all went well.
    """

    prompt: int
    wanted_s: float
    sent_s: float = 0.0
    done_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    text: str = ""
    finish_reason: str = ""
    speculation: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def took_s(self) -> float:
        """From sending to the end of the answer."""
        return self.done_s - self.sent_s

    @property
    def first_s(self) -> float:
        """From sending to the first part."""
        return (self.chunks_s[0] if self.chunks_s else self.done_s) - self.sent_s

    @property
    def between_s(self) -> list[float]:
        """Gaps between parts: what a reader of a stream sees."""
        return [b - a for a, b in pairwise(self.chunks_s)]

    @property
    def per_token_s(self) -> float | None:
        """Seconds a token behind the first part; None for answers too short to tell."""
        if len(self.chunks_s) < 2 or self.num_tokens < 2:
            return None
        return (self.chunks_s[-1] - self.chunks_s[0]) / (self.num_tokens - 1)


def fire(server: Server, shot: Shot, body: Mapping[str, Any]) -> None:
    """Send, and take note of what comes; whatever fails is in ``shot.error``."""
    connection = server.connect()
    try:
        raw = json.dumps(body).encode()
        connection.connect()
        shot.sent_s = time.perf_counter()
        connection.request("POST", server.path, raw, server.headers())
        response = connection.getresponse()
        if response.status != 200:
            shot.error = f"HTTP {response.status}: {response.read(500).decode('utf-8', 'replace')}"
        elif body.get("stream"):
            _read_stream(response, shot)
        else:
            _take(shot, json.loads(response.read()))
    except (OSError, HTTPException, ValueError) as error:
        shot.error = f"{type(error).__name__}: {error}"
    finally:
        shot.done_s = time.perf_counter()
        shot.sent_s = shot.sent_s or shot.done_s
        connection.close()


def body_of(server: Server, prompt: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The body that asks for a prompt."""
    asked: dict[str, Any] = {"prompt": prompt}
    if server.endpoint == CHAT:
        asked = {"messages": [{"role": "user", "content": prompt}]}
    stream = {"stream_options": {"include_usage": True}} if options.get("stream") else {}
    return {"model": server.model, **asked, **options, **stream}


def _read_stream(response: HTTPResponse, shot: Shot) -> None:
    is_done = False
    for at, event in _events(response):
        if event == b"[DONE]":
            is_done = True
            continue
        if _take(shot, json.loads(event)):
            shot.chunks_s.append(at)
    if not is_done and not shot.error:
        shot.error = "the stream ended early"
    if not shot.num_tokens:
        shot.num_tokens = len(shot.chunks_s)


def _events(response: HTTPResponse) -> Iterator[tuple[float, bytes]]:
    while line := response.readline():
        if line.startswith(b"data:"):
            yield time.perf_counter(), line[5:].strip()


def _take(shot: Shot, body: Mapping[str, Any]) -> bool:
    """Note what a chunk or response says; whether it brought text."""
    if "error" in body:
        shot.error = str(body["error"])
        return False
    if usage := body.get("usage"):
        shot.num_tokens = int(usage.get("completion_tokens") or 0)
        shot.num_prompt_tokens = int(usage.get("prompt_tokens") or 0)
    if metrics := body.get("metrics"):
        shot.speculation = metrics.get("speculative_decoding") or {}
    has_text = False
    for choice in body.get("choices") or ():
        said = choice.get("delta") or choice.get("message") or {}
        text = choice.get("text") or said.get("content") or ""
        shot.text += text
        shot.finish_reason = choice.get("finish_reason") or shot.finish_reason
        has_text = has_text or bool(text)
    return has_text
