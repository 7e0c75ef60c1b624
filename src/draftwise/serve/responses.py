"""Responses of both endpoints: bodies, stream chunks, log-probabilities and usage."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from draftwise.engine.outputs import RequestOutput, SourceAttribution, Stats, TokenLogprobs
from draftwise.serve import schemas
from draftwise.serve.calls import CallParser
from draftwise.serve.schemas import BaseRequest, ChatRequest, CompletionRequest, Refused
from draftwise.serve.service import Service
from draftwise.serve.worker import GenerationRequest, Worker


def _finite(logprob: float) -> float:
    """JSON has no infinity: -9999 stands for it, as in OpenAI's API and vLLM."""
    return max(float(logprob), -9999.0)


def speculative_decoding(rounds: Sequence[tuple[int, int]], num_spec_tokens: int) -> dict[str, Any]:
    """vLLM's fields. rounds: (drafted, accepted) a round; rounds without a draft do not count.

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


_RESYNC = 3  # tokens that show where an answer follows its prediction again
_REACH = 4  # tokens that an answer may skip there, for each that was not in the prediction


def num_predicted(prediction: Sequence[int], answer: Sequence[int]) -> int:
    """The number of a prediction's tokens that are in the answer, in order.

    Time: linear, but for a binary search where the two differ.

    >>> num_predicted([1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 9, 4, 5, 6, 7])
    6
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for end in range(_RESYNC, len(prediction) + 1):
        places.setdefault(tuple(prediction[end - _RESYNC : end]), []).append(end)
    num = at = num_other = 0  # kept; read of the prediction; latest tokens that are not in it
    for end, token in enumerate(answer, 1):
        is_next = at < len(prediction) and prediction[at] == token
        found: list[int] = []
        if num_other or not is_next:  # where the two differ, one equal token may be chance
            num_other += 1
            found = places.get(tuple(answer[end - _RESYNC : end]) if end >= _RESYNC else (), [])
        next_ = bisect_right(found, at)
        # a text that repeats itself goes on in many places: a far one takes more tokens to believe
        if next_ < len(found) and found[next_] - at <= _REACH * num_other:
            place, most = found[next_], min(num_other, found[next_] - at)
            pairs = zip(
                reversed(prediction[place - most : place]),
                reversed(answer[end - most : end]),
                strict=True,
            )
            num += sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            at, num_other = place, 0
        elif is_next:
            num, at, num_other = num + 1, at + 1, 0
    return num


Requests = Sequence[GenerationRequest]
REASONS = {"eos": "stop", "stop": "stop", "length": "length"}  # OpenAI's, by the engine's
_STATUS = {"refused": 400, "late": 408, "cancelled": 503}


class Reply:
    """The response to one HTTP request, whole or in chunks; each prompt is counted once."""

    kind = whole_kind = chunk_kind = ""
    end = b"data: [DONE]\n\n"  # of a stream

    def __init__(self, service: Service, body: BaseRequest, requests: Requests) -> None:
        self.requests, self._service, self._codec = requests, service, service.parser.codec
        self._model = body.model or service.models[0]
        self.is_stream = body.stream
        self._has_ids, self._names_ids = body.return_token_ids, body.return_tokens_as_token_ids
        self.stream_options = body.stream_options or schemas.StreamOptions()
        self.id, self._created = f"{self.kind}-{uuid.uuid4().hex}", int(time.time())
        self.num_prompt_tokens = sum(len(ask.prompt) for ask in requests[:: body.n])
        self.outputs = [RequestOutput() for _ in requests]
        self._attributions = [SourceAttribution() for _ in requests if body.draftwise.pieces]

    @property
    def num_tokens(self) -> int:
        return sum(len(output.tokens) for output in self.outputs)

    def add(self, index: int, delta: RequestOutput) -> RequestOutput:
        """Append a delta to an answer; return the part of it that the client sees."""
        self.outputs[index].add(delta)
        return delta

    def choice(self, index: int, part: RequestOutput, *, is_whole: bool) -> dict[str, Any]:
        """A choice of the response, for a whole answer or for the delta of a chunk."""
        raise NotImplementedError

    def _name(self, token: int, text: str | None = None) -> str:
        """How log-probabilities name a token. text: what it adds; default: inside any text."""
        if self._names_ids:
            return f"token_id:{token}"
        return self._codec.text_of(token) if text is None else self._codec.name_of(token, text)

    def chunk_choices(self, index: int, delta: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices of an answer's next chunks; none if there is nothing to send yet."""
        if delta.text or delta.tokens or delta.finish_reason:
            yield self.choice(index, delta, is_whole=False)

    def whole(self) -> dict[str, Any]:
        choices = [self.choice(i, output, is_whole=True) for i, output in enumerate(self.outputs)]
        return self._head(self.whole_kind, choices) | self._counts()

    def chunk(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """A chunk of one choice; with ``include_usage`` the last chunk has the usage."""
        body = self._head(self.chunk_kind, [choice])
        if self.stream_options.continuous_usage_stats:
            body["usage"] = self._usage()
        elif self.stream_options.include_usage:
            body["usage"] = None
        return body

    def events(self, index: int, delta: RequestOutput) -> Iterator[dict[str, Any]]:
        """The events of an answer's delta."""
        for choice in self.chunk_choices(index, self.add(index, delta)):
            yield self.chunk(choice)

    def last_events(self) -> Iterator[dict[str, Any]]:
        """The events after the last delta."""
        if self.stream_options.include_usage:
            yield self._head(self.chunk_kind, []) | self._counts()

    def failed(self, refused: Refused) -> dict[str, Any]:
        """The event of an error after the first delta."""
        return refused.body

    def _head(self, kind: str, choices: Sequence[Any]) -> dict[str, Any]:
        about = {"id": self.id, "object": kind, "created": self._created, "model": self._model}
        return {**about, "choices": choices}

    def _usage(self) -> dict[str, Any]:
        asked, made = self.num_prompt_tokens, self.num_tokens
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    def _final_usage(self) -> dict[str, Any]:
        """Usage, with how many tokens of the predictions are in the answers."""
        pairs = zip(self.requests, self.outputs, strict=True)
        given = [(ask.options.get("prediction", ()), output.tokens) for ask, output in pairs]
        if not (num := sum(len(prediction) for prediction, _ in given)):
            return self._usage()
        kept = sum(num_predicted(prediction, tokens) for prediction, tokens in given)
        details = {"accepted_prediction_tokens": kept, "rejected_prediction_tokens": num - kept}
        return self._usage() | {"completion_tokens_details": details}

    def _counts(self) -> dict[str, Any]:
        """Usage, vLLM's counts of speculative decoding, and draftwise's own."""
        all_, rounds = Stats(), list[tuple[int, int]]()
        for output in self.outputs:
            rounds += output.rounds
            all_.merge(output.stats)
        names = ("num_rounds", "mean_accepted_tokens", "pulls")
        speeds = ("speed", "recent_speed", "speed_range")
        spec = speculative_decoding(rounds, self._service.num_spec_tokens)
        return {
            "usage": self._final_usage(),
            "metrics": {"speculative_decoding": spec},
            "draftwise": {name: getattr(all_, name) for name in (*names, *speeds)},
        }

    def _extras(self, index: int, part: RequestOutput) -> dict[str, Any]:
        """What the client asked for beside the text: vLLM's token ids, draftwise's pieces."""
        found: dict[str, Any] = {"token_ids": part.tokens} if self._has_ids else {}
        if self._attributions:
            pieces = self._attributions[index].grow(part, self.outputs[index].text)
            found["draftwise"] = {"pieces": pieces}
        return found


class CompletionReply(Reply):
    """The response of ``/v1/completions``; with ``max_tokens: 0``, of the prompt alone."""

    kind, whole_kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, service: Service, body: CompletionRequest, requests: Requests) -> None:
        super().__init__(service, body, requests)
        self._has_logprobs, self._is_empty = body.logprobs is not None, body.max_tokens == 0
        self._nums_told = [0 for _ in requests]  # characters of the tokens reported so far
        # by choice: the prompt's text, its tokens, and the text of each
        self._echoes: list[tuple[str, Sequence[int], Sequence[str]]] = []
        if body.echo:
            for given, ask in zip(body.prompts, requests[:: body.n], strict=True):
                text = given if isinstance(given, str) else self._codec.decode(given)
                texts = self._codec.token_texts(ask.prompt) if self._has_logprobs else ()
                self._echoes += [(text, ask.prompt, texts)] * body.n

    def add(self, index: int, delta: RequestOutput) -> RequestOutput:
        if self._is_empty:
            delta = replace(
                delta, text="", tokens=[], sources=[], logprobs=[], token_texts=[],
                finish_reason=delta.finish_reason and "length",
            )  # fmt: skip
        return super().add(index, delta)

    def choice(self, index: int, part: RequestOutput, *, is_whole: bool) -> dict[str, Any]:
        so_far = self.outputs[index]
        tokens, texts, found = list(part.tokens), list(part.token_texts), list(part.logprobs)
        text, offset = part.text, 0 if is_whole else self._nums_told[index]
        self._nums_told[index] += sum(map(len, texts))
        if self._echoes:
            echoed, ids, of_ids = self._echoes[index]
            offset += len(echoed)
            if len(so_far.tokens) == len(tokens):  # the first part: the prompt comes before it
                text = echoed + text
                # special tokens that the tokenizer adds are not part of the text
                offset -= sum(map(len, of_ids))
                tokens, texts = [*ids, *tokens], [*of_ids, *texts]
                found = [*(so_far.prompt_logprobs or ()), *found]  # type: ignore[list-item]
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(tokens, texts, found, offset)
            if self._has_logprobs
            else None,
            "finish_reason": REASONS.get(part.finish_reason or ""),
            **self._extras(index, part),
        }

    def _extras(self, index: int, part: RequestOutput) -> dict[str, Any]:
        found = super()._extras(index, part)
        if self._has_ids and len(part.tokens) == len(self.outputs[index].tokens):  # the first part
            found["prompt_token_ids"] = list(self.requests[index].prompt)
        return found

    def _logprobs(
        self, tokens: Sequence[int], texts: Sequence[str],
        found: Sequence[TokenLogprobs | None], offset: int,
    ) -> dict[str, Any]:  # fmt: skip
        """The first token of an echoed prompt has no log-probability.

        offset: characters of the text before these tokens; negative if these begin before it.
        """
        names = [self._name(*pair) for pair in zip(tokens, texts, strict=True)]
        starts = itertools.accumulate(map(len, texts), initial=offset)
        both = list(zip(names, found, starts, strict=False))
        return {
            "tokens": [name for name, _, _ in both],
            "token_logprobs": [None if one is None else _finite(one.logprob) for _, one, _ in both],
            "top_logprobs": [None if one is None else self._by_text(n, one) for n, one, _ in both],
            "text_offset": [max(0, start) for _, _, start in both],
        }

    def _by_text(self, name: str, one: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the chosen one; of tokens with the same text, the likelier.

        name: of the chosen one.
        """
        found: dict[str, float] = {}
        for token, logprob in [*one.top, (one.token, one.logprob)]:
            text = name if token == one.token else self._name(token)
            found[text] = _finite(max(logprob, found.get(text, logprob)))
        return found


class ChatReply(Reply):
    """The response of ``/v1/chat/completions``. State: a ``CallParser`` for each choice."""

    kind, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatRequest, requests: Requests) -> None:
        super().__init__(service, body, requests)
        self._has_logprobs = body.logprobs
        tools = {tool.function.name: tool.function.parameters for tool in body.offered}
        self._is_old = bool(body.functions)  # calls are ``function_call``, one at most
        most = None if body.parallel_tool_calls and not self._is_old else 1
        self._parsers = [CallParser(tools, most) for _ in requests] if tools else []
        self._nums_calls = [0 for _ in requests]
        self._opened: set[int] = set()
        self._untold = {"prompt_token_ids": list(requests[0].prompt)} if self._has_ids else {}

    def _head(self, kind: str, choices: Sequence[Any]) -> dict[str, Any]:
        untold, self._untold = self._untold, {}
        return super()._head(kind, choices) | untold

    def chunk_choices(self, index: int, delta: RequestOutput) -> Iterator[dict[str, Any]]:
        if index not in self._opened:
            self._opened.add(index)
            opening = {"role": "assistant", "content": ""}
            yield {"index": index, "delta": opening, "logprobs": None, "finish_reason": None}
        yield from super().chunk_choices(index, delta)

    def choice(self, index: int, part: RequestOutput, *, is_whole: bool) -> dict[str, Any]:
        content, calls = part.text, list[dict[str, Any]]()
        if self._parsers:
            is_last = part.finish_reason is not None
            content, calls = self._parsers[index].push(part.text, is_last)
        said: dict[str, Any] = {"content": content} if content or not calls else {}
        if is_whole:
            said = {"role": "assistant", "content": None, "refusal": None, **said}
        first, self._nums_calls[index] = (
            self._nums_calls[index],
            self._nums_calls[index] + len(calls),
        )
        if calls and self._is_old:
            said["function_call"] = calls[0]["function"]
        elif calls:
            numbered = [{"index": first + i, **call} for i, call in enumerate(calls)]
            said["tool_calls"] = calls if is_whole else numbered
        return {
            "index": index,
            "message" if is_whole else "delta": said,
            "logprobs": self._logprobs(part) if self._has_logprobs else None,
            "finish_reason": self._reason(index, part.finish_reason),
            **self._extras(index, part),
        }

    def _reason(self, index: int, reason: str | None) -> str | None:
        """An answer that was cut off says so, even if it has called before."""
        if reason is None or not self._nums_calls[index]:
            return REASONS.get(reason or "")
        if reason == "length" and self._parsers[index].is_cut:
            return "length"
        return "function_call" if self._is_old else "tool_calls"

    def _logprobs(self, part: RequestOutput) -> dict[str, Any]:
        content = [
            self._entry(one.token, one.logprob, text)
            | {"top_logprobs": [self._entry(*alternative) for alternative in one.top]}
            for one, text in zip(part.logprobs, part.token_texts, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float, text: str | None = None) -> dict[str, Any]:
        codec, name = self._codec, self._name(token, text)
        own = codec.text_of(token) if text is None else codec.name_of(token, text)
        return {"token": name, "logprob": _finite(logprob), "bytes": [*codec.bytes_of(token, own)]}


class AnswerStreams:
    """The answers of one HTTP request, with their unread deltas. Errors: Busy, Closing."""

    def __init__(self, worker: Worker, requests: Requests) -> None:
        self._worker, self._loop = worker, asyncio.get_running_loop()
        self._lock, self._filled = threading.Lock(), asyncio.Event()
        self._unread: dict[int, RequestOutput] = {}
        callbacks = [partial(self._put, index) for index in range(len(requests))]
        self._open = dict(enumerate(worker.submit(requests, callbacks)))

    async def parts(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """(choice, delta) until all answers are complete. Errors: Refused if one of them failed."""
        while self._open:
            await self._filled.wait()
            with self._lock:
                unread, self._unread = self._unread, {}
                self._filled.clear()
            for index, delta in sorted(unread.items()):
                if delta.finish_reason is not None:
                    self._open.pop(index, None)
                    if (reason := delta.finish_reason) not in REASONS:
                        message = delta.error or f"the answer ended with: {reason}"
                        wait_s = 5 if reason == "cancelled" else None  # the server is shutting down
                        status, code = _STATUS.get(reason, 500), reason.replace(" ", "_")
                        raise Refused(status, message, code=code, retry_after_s=wait_s)
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


async def gather(answers: AnswerStreams, reply: Reply) -> dict[str, Any]:
    async for index, delta in answers.parts():
        reply.add(index, delta)
    return reply.whole()


async def events(answers: AnswerStreams, reply: Reply) -> AsyncIterator[bytes]:
    """Server-sent events, with usage and errors. Refused for an error before the first."""
    has_begun = False
    try:
        async for index, delta in answers.parts():
            has_begun = True
            for event in reply.events(index, delta):
                yield _event(event)
        for event in reply.last_events():
            yield _event(event)
    except Refused as refused:
        if not has_begun:
            raise
        yield _event(reply.failed(refused))
    if reply.end:
        yield reply.end


class EventStream(StreamingResponse):
    """Events for one client; a client that reads nothing for ``patience_s`` is disconnected."""

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], patience_s: float, close: Callable[[], None]
    ) -> None:
        async def parts() -> AsyncIterator[bytes]:
            yield first
            async for part in rest:
                yield part

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(parts(), media_type="text/event-stream", headers=headers)
        self._patience_s, self._close = patience_s, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def patient(message: Message) -> None:
            async with asyncio.timeout(self._patience_s):
                await send(message)

        try:
            await until_gone(self.stream_response(patient), receive)
        finally:
            self._close()


async def until_gone(work: Awaitable[Any], receive: Receive) -> Any:
    """The result of ``work``; None, with the work cancelled, if the client disconnects first."""

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(leaves())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    except (TimeoutError, OSError):  # a client that does not read, or a broken connection
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    named = f"event: {body['type']}\n" if "type" in body else ""
    return f"{named}data: {text}\n\n".encode("utf-8", "replace")
