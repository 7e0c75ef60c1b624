"""What every HTTP request passes: a number, a key, a size; and its line in the log."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwise.serve.errors import Refused, response

_LOG = logging.getLogger(__name__)
_GIVEN_ID = re.compile(rb"[\w.:-]{1,64}", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]+)?", re.ASCII)
_OPEN_PATHS = {"/", "/health"}
_POLLED_PATHS = {"/health", "/metrics", "/stats"}
"""Read every few seconds by machines and by an open page: no line in the log says so."""
_BODY_TIMEOUT_S = 30.0


class Middleware:
    """Around the application. keys: without any, all are let in. max_body: bytes.

    heavy_ended: called when a request ends that set ``is_heavy`` in its state.
    hosts: names that ``Host`` may have, in lower case; without any, or with ``*``, all may. A web
    page whose name leads to this machine's own address is kept out by it (DNS rebinding).

    Bodies are read here, whole, so that the size is known before anything looks at them; after
    the body ``receive`` only tells of the client's leaving.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        max_body: int,
        saw_response: Callable[[str, int], None],
        hosts: Sequence[str] = (),
        heavy_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._heavy_ended = heavy_ended
        self._hosts = frozenset() if "*" in hosts else frozenset(map(str.lower, hosts))
        self._app, self._max_body, self._saw_response = app, max_body, saw_response
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request; anything else (the lifespan) goes straight through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        number = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        facts: dict[str, Any] = {"request_id": number.decode()}
        scope.setdefault("state", {})["facts"] = facts
        began, status = time.monotonic(), 499  # as nginx says: the client left before an answer

        async def send_numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number)]
            await send(message)

        try:
            try:
                self._check_host(headers.get(b"host", b""))
                self._check_key(scope["path"], headers.get(b"authorization", b""))
                body = await self._read(headers, receive)
            except Refused as refused:
                await response(refused)(scope, receive, send_numbered)
            else:
                if body is not None:
                    await self._pass(scope, _replay(body, receive), send_numbered)
        finally:
            path = _template(scope)
            self._saw_response(path, status)
            if scope["state"].get("is_heavy"):
                self._heavy_ended()
            seconds = round(time.monotonic() - began, 6)
            line = {"method": scope["method"], "path": path, "status": status, "seconds": seconds}
            level = logging.DEBUG if path in _POLLED_PATHS and status == 200 else logging.INFO
            _LOG.log(level, "request", extra={"facts": {**facts, **line}})

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            # the application has answered 500 already; the connection need not suffer for it
            _LOG.exception("a request failed", extra={"facts": scope["state"]["facts"]})

    def _check_host(self, host: bytes) -> None:
        if not self._hosts or not host:  # browsers always send one
            return
        name = _HOST.fullmatch(host.decode("latin-1").lower())
        if name is None or name[1] not in self._hosts:
            raise Refused(
                403,
                "this server does not go by the name that the request's Host header says; to serve "
                "under it, start with --allowed-host NAME",
                code="host_not_allowed",
            )

    def _check_key(self, path: str, authorization: bytes) -> None:
        if not self._keys or path in _OPEN_PATHS:
            return
        kind, _, given = authorization.partition(b" ")
        # all are compared, in constant time: how long this takes says nothing about any
        matches = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if kind.lower() != b"bearer" or not any(matches):
            raise Refused(
                401,
                "wrong or missing API key: send Authorization: Bearer KEY",
                code="invalid_api_key",
            )

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The body; None where the client left."""
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
    """``receive`` that gives the body once more."""
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _template(scope: Scope) -> str:
    """The route's path, so that what strangers type does not become a metric."""
    route = scope.get("route")
    return str(getattr(route, "path", "unknown"))
