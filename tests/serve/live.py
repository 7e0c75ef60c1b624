"""A server on a free local port, in a thread of the test."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from typing import Any

import uvicorn

from draftwise.serve.app import make_app
from draftwise.serve.constraint import Grammars
from draftwise.serve.metrics import Metrics
from draftwise.serve.parse import Codec, RequestParser
from draftwise.serve.service import Service
from draftwise.serve.settings import ServerSettings
from draftwise.serve.worker import Worker
from engine.scripted import VOCAB
from serve.fake import PLANS, Fake

MAX_POSITIONS = 4096


@dataclass
class Said:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream, which must end properly."""
        lines = [line for line in self.text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines[:-1]]


class Live:
    """A client of a server, stateless between requests."""

    def __init__(self, port: int, service: Service) -> None:
        self.port, self.service = port, service
        self.url = f"http://127.0.0.1:{port}"

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = ""
    ) -> Said:
        """Send a GET, or a POST if there is a body (bytes are sent unchanged)."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method or ("GET" if raw is None else "POST"), path, raw, sent)
            response = connection.getresponse()
            text = response.read().decode()
            return Said(response.status, {k.lower(): v for k, v in response.getheaders()}, text)
        finally:
            connection.close()

    def complete(self, prompt: Any = "abc", **fields: Any) -> Said:
        return self.ask("/v1/completions", {"prompt": prompt, **fields})

    def chat(self, content: str = "abc", **fields: Any) -> Said:
        messages = [{"role": "user", "content": content}]
        return self.ask("/v1/chat/completions", {"messages": messages, **fields})

    def settle(self) -> None:
        """Wait until no request is open."""
        until = time.monotonic() + 20
        while self.service.worker.num_open and time.monotonic() < until:
            time.sleep(0.005)
        assert self.service.worker.num_open == 0


def fake_service(
    fake: Fake, max_open: int = 16, limits: ServerSettings | None = None, **more: Any
) -> Service:
    """A service on an engine without a model."""
    tokenizer, eos = fake.tokenizer, frozenset({VOCAB - 1})
    metrics = Metrics("parrot", fake.engine.max_rows, max_open, PLANS)
    codec = Codec(
        tokenizer, max(VOCAB, len(tokenizer)), MAX_POSITIONS, more.pop("chat_template", None)
    )
    worker = Worker(fake.engine, fake.request, max_open=max_open, observers=[metrics])
    return Service(
        worker=worker,
        parser=RequestParser(
            codec,
            Grammars(tokenizer, VOCAB, eos),
            eos,
            replace(limits or ServerSettings(), max_rows=max_open, max_queue=0),
        ),
        metrics=metrics,
        models=("parrot", "other-name"),
        num_spec_tokens=2,
        about={"model": "parrot", "drafters": ["parrot"], "has_template": False},
        created=1,
        **more,
    )


@contextmanager
def serving(service: Service, gate: ServerSettings | None = None, port: int = 0) -> Iterator[Live]:
    """Serve until the block ends. port: 0 = any free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        make_app(service, gate or ServerSettings()),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    try:
        yield Live(listener.getsockname()[1], service)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        assert not service.worker.is_alive
        listener.close()
