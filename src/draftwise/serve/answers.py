"""The answers of one HTTP request while they come: gathered, or as events of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftwise.serve.errors import Refused, error_body
from draftwise.serve.mailbox import Mailbox
from draftwise.serve.protocol import Delta
from draftwise.serve.reply import REASONS, Envelope
from draftwise.serve.ticket import Ticket
from draftwise.serve.wire import StreamOptions
from draftwise.serve.worker import Worker

_STATUS = {"refused": 400, "late": 408, "cancelled": 503}


class Answers:
    """Tickets of one HTTP request. Iterate once; ``close`` lets go of what is not finished."""

    def __init__(self, worker: Worker, tickets: list[Ticket], mailbox: Mailbox) -> None:
        self._worker, self._mailbox = worker, mailbox
        self._open = dict(enumerate(tickets))

    async def parts(self) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, part) until all have ended. Raises Refused where one did not end properly."""
        while self._open:
            for index, delta in sorted((await self._mailbox.take()).items()):
                if delta.finish_reason is not None:
                    self._open.pop(index, None)
                    if delta.finish_reason not in REASONS:
                        raise failure(delta)
                yield index, delta

    def close(self) -> None:
        """The rest is not waited for."""
        if self._open:
            self._worker.cancel(self._open.values())
            self._open = {}


def failure(delta: Delta) -> Refused:
    """How an answer that did not end properly is told."""
    reason = delta.finish_reason or ""
    message = delta.error or f"the answer ended with: {reason}"
    again_s = 5 if reason == "cancelled" else None  # the server is going down
    code = reason.replace(" ", "_")
    return Refused(_STATUS.get(reason, 500), message, code=code, retry_after_s=again_s)


async def gather(answers: Answers, envelope: Envelope, num: int) -> dict[str, Any]:
    """The whole response. Raises Refused."""
    whole = [Delta() for _ in range(num)]
    async for index, delta in answers.parts():
        envelope.count(delta)
        whole[index].add(delta)
    choices = [envelope.form.choice(index, answer) for index, answer in enumerate(whole)]
    return envelope.whole(choices)


async def events(
    answers: Answers, envelope: Envelope, options: StreamOptions
) -> AsyncIterator[bytes]:
    """Server-sent events: a chunk a part, usage as asked for, an error as its own event.

    Raises Refused where there is no event before the error: the response has not begun then.
    """
    usage = "each" if options.continuous_usage_stats else "last" if options.include_usage else "no"
    opened: set[int] = set()
    try:
        async for index, delta in answers.parts():
            envelope.count(delta)
            if index not in opened:
                opened.add(index)
                if (opening := envelope.form.opening(index)) is not None:
                    yield _event(envelope.chunk(opening, usage))
            if (choice := envelope.form.piece(index, delta)) is not None:
                yield _event(envelope.chunk(choice, usage))
        if options.include_usage:
            yield _event(envelope.last_chunk())
    except Refused as refused:
        if not opened:
            raise
        yield _event(error_body(refused.status, refused.message, code=refused.code))
    yield b"data: [DONE]\n\n"


class EventStream(Response):
    """Events to one reader. A reader that takes nothing for ``patience_s`` is let go."""

    def __init__(
        self,
        first: bytes,
        rest: AsyncIterator[bytes],
        patience_s: float,
        close: Callable[[], None],
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._first, self._rest = first, rest
        self._patience_s, self._close = patience_s, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client leaves."""
        try:
            await until_gone(self._send(send), receive)
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await self._send_part(send, self._first)
        async for part in self._rest:
            await self._send_part(send, part)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_part(self, send: Send, part: bytes) -> None:
        async with asyncio.timeout(self._patience_s):
            await send({"type": "http.response.body", "body": part, "more_body": True})


async def until_gone(work: Awaitable[Any], receive: Receive) -> Any:
    """The result of ``work``; None, and the work cancelled, where the client leaves before it."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(_leaves(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    except (TimeoutError, OSError):  # a reader that does not read, or a broken connection
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8", "replace") + b"\n\n"
