"""What surrounds the routes: request ids, keys, limits and the access log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwise.serve.schemas import Refused
from draftwise.serve.service import Service
from draftwise.serve.settings import ServerSettings

_LOG = logging.getLogger(__name__)
_GIVEN_ID = re.compile(rb"[\w.:-]{1,64}", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]+)?", re.ASCII)
_OPEN_PATHS = {"/", "/health", "/ping"}
_POLLED_PATHS = {"/health", "/ping", "/metrics", "/stats"}  # too often for the access log
_BODY_TIMEOUT_S = 30.0


class Middleware:
    """Request ids, host and key checks, body limits and the access log, around the application.

    Whole bodies are read here, so their size is known before they are parsed; afterwards
    ``receive`` only reports that the client has disconnected.
    """

    def __init__(self, app: ASGIApp, service: Service, settings: ServerSettings) -> None:
        self._app, self._service, self._max_body = app, service, settings.max_body
        self._hosts = set() if "*" in settings.hosts else set(map(str.lower, settings.hosts))
        self._keys = [key.encode() for key in settings.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the lifespan
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        number = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        facts: dict[str, Any] = {"request_id": number.decode()}
        scope.setdefault("state", {})["facts"] = facts
        began, status = time.monotonic(), 499  # as in nginx: the client closed the connection

        async def send_numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number)]
            await send(message)

        try:
            self._check_host(headers.get(b"host", b""))
            self._check_key(scope["path"], headers.get(b"authorization", b""))
            body = await self._read(headers, receive)
            if scope["method"] == "HEAD":  # as GET; the server sends no body
                scope = {**scope, "method": "GET"}
            if body is not None:
                await self._app(scope, _replay(body, receive), send_numbered)
        except Refused as refused:
            await refused.response(scope, receive, send_numbered)
        except Exception:
            # the application has already answered 500; keep the connection
            _LOG.exception("a request failed", extra={"facts": facts})
        finally:
            # the route, since arbitrary paths must not become metric labels
            path = str(getattr(scope.get("route"), "path", "unknown"))
            self._service.metrics.saw_response(path, status)
            if scope["state"].get("is_heavy"):
                self._service.heavy.ended()
            seconds = round(time.monotonic() - began, 6)
            line = {"method": scope["method"], "path": path, "status": status, "seconds": seconds}
            level = logging.DEBUG if path in _POLLED_PATHS and status == 200 else logging.INFO
            _LOG.log(level, "request", extra={"facts": {**facts, **line}})

    def _check_host(self, host: bytes) -> None:
        """Prevent DNS rebinding: a web page's name that resolves to this machine's address."""
        if not self._hosts or not host:  # browsers always send one
            return
        name = _HOST.fullmatch(host.decode("latin-1").lower())
        if name is None or name[1] not in self._hosts:
            message = "this server does not go by the name that the request's Host header says; "
            message += "to serve under it, start with --allowed-host NAME"
            raise Refused(403, message, code="host_not_allowed")

    def _check_key(self, path: str, authorization: bytes) -> None:
        if not self._keys or path in _OPEN_PATHS:
            return
        kind, _, given = authorization.partition(b" ")
        # compare with all keys in constant time: timing must not leak a key
        matches = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if kind.lower() != b"bearer" or not any(matches):
            message = "wrong or missing API key: send Authorization: Bearer KEY"
            raise Refused(401, message, code="invalid_api_key")

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The body; None if the client disconnected."""
        length = headers.get(b"content-length", b"0")
        too_large = Refused(413, f"the body is larger than {self._max_body} bytes")
        if not length.isdigit() or int(length[:20]) > self._max_body:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_body:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, f"the body did not come within {_BODY_TIMEOUT_S:.0f} s") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that replays the body once."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


class _Formatter(logging.Formatter):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        facts, level = getattr(record, "facts", {}), record.levelname.lower()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._as_json:
            at, more = round(record.created, 6), {"traceback": trace} if trace else {}
            event = record.getMessage()
            return json.dumps({"time": at, "level": level, "event": event, **facts, **more})
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        # line breaks from a client must not start a new log line
        words = [clock, level, *record.getMessage().split()]
        line = " ".join([*words, *(f"{key}={value}" for key, value in facts.items())])
        return f"{line}\n{trace}" if trace else line


def set_up_logs(form: str) -> None:
    """Send the log records of draftwise and uvicorn to stderr, as ``text`` or ``json``."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(as_json=form == "json"))
    for name, level in (("draftwise", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
