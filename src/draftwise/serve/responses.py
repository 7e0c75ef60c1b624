"""What both endpoints answer: bodies, chunks of a stream, log-probabilities, counts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftwise.engine.attribution import SourceAttribution
from draftwise.engine.generation import RequestOutput
from draftwise.engine.records import TokenLogprobs
from draftwise.engine.request import Stats
from draftwise.serve.parse import Codec, ToolText
from draftwise.serve.schemas import (
    ChatRequest,
    CompletionRequest,
    Refused,
    StreamOptions,
    error_body,
)
from draftwise.serve.worker import GenerationRequest, Worker

_LEAST = -9999.0
"""What stands for minus infinity, which JSON does not have (as OpenAI and vLLM do)."""


def chat_logprobs(found: Sequence[TokenLogprobs], codec: Codec) -> dict[str, Any]:
    content = [
        {
            **_entry(one.token, one.logprob, codec),
            "top_logprobs": [_entry(token, logprob, codec) for token, logprob in one.top],
        }
        for one in found
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[int], found: Sequence[TokenLogprobs | None], codec: Codec, offset: int
) -> dict[str, Any]:
    """``logprobs`` of a completion's choice; the first of an echoed prompt has none.

    offset: characters of the text before these tokens; below 0 where the first are not in it.
    """
    texts = [codec.text_of(token) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(max(0, offset))
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if one is None else _finite(one.logprob) for one in found],
        "top_logprobs": [None if one is None else _by_text(one, codec) for one in found],
        "text_offset": offsets,
    }


def _entry(token: int, logprob: float, codec: Codec) -> dict[str, Any]:
    raw = list(codec.bytes_of(token))
    return {"token": codec.text_of(token), "logprob": _finite(logprob), "bytes": raw}


def _by_text(one: TokenLogprobs, codec: Codec) -> dict[str, float]:
    """The likeliest tokens and the chosen one; of tokens with one text the likelier counts."""
    found: dict[str, float] = {}
    for token, logprob in [*one.top, (one.token, one.logprob)]:
        text = codec.text_of(token)
        found[text] = max(_finite(logprob), found.get(text, _LEAST))
    return found


def _finite(logprob: float) -> float:
    return max(float(logprob), _LEAST)


def speculative_decoding(rounds: Sequence[tuple[int, int]], num_spec_tokens: int) -> dict[str, Any]:
    """vLLM's form. rounds: (drafted, accepted) a round; those without a draft are no spec steps.

    >>> speculative_decoding([(2, 1), (0, 0), (2, 2)], 2)["acceptance_histogram"]
    [0, 1, 1]
    """
    steps = [(drafted, accepted) for drafted, accepted in rounds if drafted]
    num_drafted, num_accepted = (sum(step[i] for step in steps) for i in (0, 1))
    histogram = Counter(min(accepted, num_spec_tokens) for _, accepted in steps)
    return {
        "mean_acceptance_length": 1 + num_accepted / len(steps) if steps else 1.0,
        "draft_acceptance_rate": num_accepted / num_drafted if num_drafted else 0.0,
        "acceptance_histogram": [histogram[n] for n in range(num_spec_tokens + 1)],
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": num_spec_tokens,
    }


def own_counts(stats: Iterable[Stats]) -> dict[str, Any]:
    """Rounds, tokens a round, pulls by drafter, and speed relative to plain, of all answers."""
    whole = Stats()
    for one in stats:
        whole.merge(one)
    return {
        "num_rounds": whole.num_rounds,
        "mean_accepted_tokens": whole.mean_accepted_tokens,
        "pulls": dict(whole.pulls),
        "speed": whole.speed,
        "recent_speed": whole.recent_speed,
    }


REASONS: Mapping[str, str] = {"eos": "stop", "stop": "stop", "length": "length"}
"""The engine's words for a proper end, and OpenAI's."""


@dataclass(frozen=True, slots=True)
class About:
    """What a reply says besides its choices. painters: by choice, where drafters are named."""

    codec: Codec
    model: str
    num_prompt_tokens: int
    num_spec_tokens: int
    painters: Sequence[SourceAttribution] = ()


class Reply:
    """The response to one HTTP request, whole or in chunks; its choices have an index.

    ``is_empty``: only the prompt is returned, without the token that the engine adds.
    State: tokens, rounds and counts of its answers so far.
    """

    kind = whole_kind = chunk_kind = ""
    is_empty = False

    def __init__(self, about: About) -> None:
        self.about, self._codec = about, about.codec
        self.id, self._created = f"{self.kind}-{uuid.uuid4().hex}", int(time.time())
        self.num_tokens = 0
        self._rounds: list[tuple[int, int]] = []
        self._stats: list[Stats] = []
        self._texts: dict[int, str] = {}

    def opening(self, index: int) -> Mapping[str, Any] | None:
        """The choice of a chunk that comes before any token, if there is one."""
        return None

    def piece(self, index: int, delta: RequestOutput) -> Mapping[str, Any] | None:
        """The choice of a chunk; None where there is nothing to tell yet."""
        raise NotImplementedError

    def choice(self, index: int, answer: RequestOutput) -> Mapping[str, Any]:
        """A choice of the whole response, of which this is all."""
        choice = self.piece(index, answer)
        assert choice is not None, "a whole answer has a finish reason"
        return choice

    def count(self, delta: RequestOutput) -> None:
        self.num_tokens += 0 if self.is_empty else len(delta.tokens)
        self._rounds += delta.rounds
        if delta.finish_reason is not None and delta.stats is not None:
            self._stats.append(delta.stats)

    def whole(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self._head(self.whole_kind), "choices": choices, **self._facts()}

    def chunk(self, choice: Mapping[str, Any], usage: str) -> dict[str, Any]:
        """A chunk of one choice. usage: ``no``, ``last`` (null until the last), ``each``."""
        body = {**self._head(self.chunk_kind), "choices": [choice]}
        if usage != "no":
            body["usage"] = self._usage() if usage == "each" else None
        return body

    def last_chunk(self) -> dict[str, Any]:
        return {**self._head(self.chunk_kind), "choices": [], **self._facts()}

    def _usage(self) -> dict[str, int]:
        num_prompt = self.about.num_prompt_tokens
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self.num_tokens,
            "total_tokens": num_prompt + self.num_tokens,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self.about.model}

    def _facts(self) -> dict[str, Any]:
        metrics = speculative_decoding(self._rounds, self.about.num_spec_tokens)
        return {
            "usage": self._usage(),
            "metrics": {"speculative_decoding": metrics},
            "draftwise": own_counts(self._stats),
        }

    def _pieces(self, index: int, delta: RequestOutput) -> dict[str, Any]:
        """The drafter of each piece of text, if requested."""
        if not self.about.painters:
            return {}
        painter, text = self.about.painters[index], self._texts.get(index, "") + delta.text
        self._texts[index] = text
        return {"draftwise": {"pieces": painter.grow(delta, text)}}


class CompletionReply(Reply):
    """``/v1/completions``. echoes: by choice, the text and ids of its prompt, where it comes first.

    State: characters that each choice has shown.
    """

    kind, whole_kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, about: About, body: CompletionRequest, echoes: Sequence[tuple[str, Sequence[int]]]
    ) -> None:
        super().__init__(about)
        self._echoes = echoes
        self._has_logprobs, self.is_empty = body.logprobs is not None, body.max_tokens == 0
        self._shown: dict[int, int] = {}

    def piece(self, index: int, delta: RequestOutput) -> Mapping[str, Any] | None:
        if self.is_empty:
            delta = RequestOutput(
                finish_reason=delta.finish_reason and "length",
                prompt_logprobs=delta.prompt_logprobs,
            )
        if not (delta.text or delta.tokens or delta.finish_reason):
            return None
        text, offset = delta.text, self._shown.get(index, 0)
        if self._echoes and index not in self._shown:
            text = self._echoes[index][0] + text
        logprobs = self._logprobs(index, delta, offset) if self._has_logprobs else None
        self._shown[index] = offset + len(text)
        reason = REASONS.get(delta.finish_reason or "")
        more = self._pieces(index, delta)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **more}

    def _logprobs(self, index: int, delta: RequestOutput, offset: int) -> dict[str, Any]:
        tokens, found = list(delta.tokens), list(delta.logprobs)
        if self._echoes and index not in self._shown:
            text, ids = self._echoes[index]
            # what the tokenizer set in front is no part of the text
            offset = len(text) - sum(len(self._codec.text_of(token)) for token in ids)
            tokens = [*ids, *tokens]
            found = [*(delta.prompt_logprobs or ()), *found]  # type: ignore[list-item]
        num = min(len(tokens), len(found))
        return completion_logprobs(tokens[:num], found[:num], self._codec, offset)


class ChatReply(Reply):
    """``/v1/chat/completions``. State: by choice, the text in which calls are looked for."""

    kind, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, about: About, body: ChatRequest, num: int) -> None:
        super().__init__(about)
        self._has_logprobs = body.logprobs
        names = [tool.function.name for tool in body.tools or ()]
        calls = names and body.tool_choice != "none"
        self._tools = [ToolText(names) for _ in range(num)] if calls else []

    def opening(self, index: int) -> Mapping[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, delta: RequestOutput) -> Mapping[str, Any] | None:
        if not (delta.text or delta.tokens or delta.finish_reason):
            return None
        content, calls = self._split(index, delta)
        change: dict[str, Any] = {"content": content} if content or not calls else {}
        if calls:
            change["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        more = self._pieces(index, delta)
        return {"index": index, "delta": change, **self._end(delta, calls), **more}

    def choice(self, index: int, answer: RequestOutput) -> Mapping[str, Any]:
        content, calls = self._split(index, answer)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        more = self._pieces(index, answer)
        return {"index": index, "message": message, **self._end(answer, calls), **more}

    def _split(self, index: int, delta: RequestOutput) -> tuple[str, list[dict[str, Any]]]:
        if not self._tools:
            return delta.text, []
        content = self._tools[index].push(delta.text)
        if delta.finish_reason is None:
            return content, []
        rest, calls = self._tools[index].finish()
        return content + rest, calls

    def _end(self, delta: RequestOutput, calls: Sequence[Any]) -> dict[str, Any]:
        logprobs = chat_logprobs(delta.logprobs, self._codec) if self._has_logprobs else None
        reason = REASONS.get(delta.finish_reason or "")
        return {"logprobs": logprobs, "finish_reason": "tool_calls" if calls else reason}


_STATUS = {"refused": 400, "late": 408, "cancelled": 503}


class AnswerStreams:
    """The answers of one HTTP request; raises Busy or Closing where the worker takes no more.

    State: the answers that have not ended; by answer, what came and was not read yet.
    """

    def __init__(self, worker: Worker, asks: Sequence[GenerationRequest]) -> None:
        self._worker, self._loop = worker, asyncio.get_running_loop()
        self._lock, self._filled = threading.Lock(), asyncio.Event()
        self._unread: dict[int, RequestOutput] = {}
        sinks = [partial(self._put, index) for index in range(len(asks))]
        self._open = dict(enumerate(worker.submit(asks, sinks)))

    async def parts(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """(choice, part) until all have ended. Raises Refused where one did not end properly."""
        while self._open:
            await self._filled.wait()
            with self._lock:
                unread, self._unread = self._unread, {}
                self._filled.clear()
            for index, delta in sorted(unread.items()):
                if delta.finish_reason is not None:
                    self._open.pop(index, None)
                    if delta.finish_reason not in REASONS:
                        raise failure(delta)
                yield index, delta

    def close(self) -> None:
        if self._open:
            self._worker.cancel(self._open.values())
            self._open = {}

    def _put(self, index: int, part: RequestOutput) -> None:
        """Called in the engine's thread."""
        with self._lock:
            is_first = not self._unread
            self._unread.setdefault(index, RequestOutput()).add(part)
        if is_first and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._filled.set)


def failure(delta: RequestOutput) -> Refused:
    reason = delta.finish_reason or ""
    message = delta.error or f"the answer ended with: {reason}"
    again_s = 5 if reason == "cancelled" else None  # the server is going down
    code = reason.replace(" ", "_")
    return Refused(_STATUS.get(reason, 500), message, code=code, retry_after_s=again_s)


async def gather(answers: AnswerStreams, reply: Reply, num: int) -> dict[str, Any]:
    whole = [RequestOutput() for _ in range(num)]
    async for index, delta in answers.parts():
        reply.count(delta)
        whole[index].add(delta)
    choices = [reply.choice(index, answer) for index, answer in enumerate(whole)]
    return reply.whole(choices)


async def events(
    answers: AnswerStreams, reply: Reply, options: StreamOptions
) -> AsyncIterator[bytes]:
    """Server-sent events: a chunk a part, usage if requested, an error as its own event.

    Raises Refused where there is no event before the error: the response has not begun then.
    """
    usage = "each" if options.continuous_usage_stats else "last" if options.include_usage else "no"
    opened: set[int] = set()
    try:
        async for index, delta in answers.parts():
            reply.count(delta)
            if index not in opened:
                opened.add(index)
                if (opening := reply.opening(index)) is not None:
                    yield _event(reply.chunk(opening, usage))
            if (choice := reply.piece(index, delta)) is not None:
                yield _event(reply.chunk(choice, usage))
        if options.include_usage:
            yield _event(reply.last_chunk())
    except Refused as refused:
        if not opened:
            raise
        yield _event(error_body(refused.status, refused.message, code=refused.code))
    yield b"data: [DONE]\n\n"


class EventStream(Response):
    """Events to one reader. A reader that takes nothing for ``patience_s`` is let go."""

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], patience_s: float, close: Callable[[], None]
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._first, self._rest = first, rest
        self._patience_s, self._close = patience_s, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(self._send(send), receive)
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        async def body(part: bytes, more: bool = True) -> None:
            async with asyncio.timeout(self._patience_s):
                await send({"type": "http.response.body", "body": part, "more_body": more})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await body(self._first)
        async for part in self._rest:
            await body(part)
        await body(b"", more=False)


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
