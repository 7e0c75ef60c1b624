"""Generation for a batch of prompts: iterate over rounds, read results at any time."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftwise.engine.engine import Engine
from draftwise.engine.records import Round, TokenLogprobs, TraceWriter
from draftwise.engine.request import Request, Stats

_NUMBERS = (
    "num_rounds", "num_drafted", "num_accepted", "num_emitted", "mean_accepted_tokens",
    "draft_acceptance_rate", "tok_per_s", "speed", "recent_speed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """One finished answer.

    tokens: without the prompt. sources: the drafter of each, or ``target``. finish_reason: ``eos``,
    ``stop``, ``length``, ``non-finite logits``, ``cancelled``, ``error`` (a callback raised) or
    ``interrupted``. logprobs: one per token, if requested.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    sources: list[str]
    finish_reason: str
    stats: Stats
    logprobs: Sequence[TokenLogprobs] = ()

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:59] + "…"
        return (
            f"Result({text!r}, {len(self.tokens)} tokens in {self.stats.num_rounds} rounds, "
            f"MAT {self.stats.mean_accepted_tokens:.2f}, ended by {self.finish_reason})"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "text": self.text,
            **{name: getattr(self.stats, name) for name in _NUMBERS},
            "seconds_by_phase": dict(self.stats.seconds_by_phase),
            "pulls": dict(self.stats.pulls),
            "finish_reason": self.finish_reason,
            "num_prompt_tokens": len(self.prompt_tokens),
        }


@dataclass(slots=True)
class RequestOutput:
    """The output of one request since the previous read: a delta, as in vLLM.

    sources: the drafter of each token. text: new final text. rounds: tokens drafted and accepted in
    each. prompt_logprobs: in the first delta, None for the first token. finish_reason, stats,
    error: in the last delta.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stats: Stats | None = None
    error: str | None = None

    def add(self, later: RequestOutput) -> None:
        self.text += later.text
        for name in ("tokens", "sources", "rounds", "logprobs"):
            getattr(self, name).extend(getattr(later, name))
        self.prompt_logprobs = later.prompt_logprobs or self.prompt_logprobs
        self.finish_reason, self.stats, self.error = later.finish_reason, later.stats, later.error


class OutputReader:
    """Reads a request's output as deltas. State: the amount already read."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._num_chars = self._num_logprobs = 0
        self._is_first = True

    def read(self, rounds: Iterable[Round]) -> RequestOutput:
        """The next delta; rounds: the request's rounds since the previous one."""
        request, part = self.request, RequestOutput()
        for round_ in rounds:
            part.tokens += round_.tokens
            part.sources += round_.sources
            part.rounds.append((round_.num_drafted, round_.num_accepted))
        text = request.answer.text
        part.text, self._num_chars = text[self._num_chars :], len(text)
        part.logprobs = request.logprobs[self._num_logprobs :]
        self._num_logprobs += len(part.logprobs)
        if self._is_first and request.wants_prompt_logprobs:
            part.prompt_logprobs = [None, *request.prompt_logprobs]
        self._is_first = False
        if request.answer.finish_reason is not None:
            part.finish_reason, part.stats = request.answer.finish_reason, request.stats
            part.error = None if request.error is None else str(request.error)
        return part


class Generation(Iterator[Round]):
    """A running batch: iterate over its rounds, call ``results`` at any time.

    Iteration can be resumed after Ctrl-C or an error. A garbage-collected generation cancels its
    requests.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[Request], trace: str | Path | None
    ) -> None:
        self._engine, self._outbox = engine, deque[Round]()
        self._requests: list[Request] = []
        self._trace: TraceWriter | None = None  # for __del__, where the next line raises
        self._trace = None if trace is None else TraceWriter(trace)
        for request in requests:
            request.outbox = self._outbox
            engine.admit(request)
            self._requests.append(request)
        self._unreported = self._requests
        self._numbers = {request.id: index for index, request in enumerate(requests)}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        with self._engine.lock:  # another thread's step may bring our rounds, too
            while not self._outbox:
                if all(request.is_over for request in self._requests):
                    self._close_trace()
                    self._report_errors()
                    raise StopIteration
                self._engine.step()
            round_ = self._outbox.popleft()
        round_ = replace(round_, request=self._numbers[round_.request])
        if self._trace is not None:
            self._trace.write(round_)
        return round_

    def __del__(self) -> None:
        # the garbage collector may run this in the middle of a step, and in any thread
        self._close_trace()
        for request in self._requests:
            if not request.is_over:
                self._engine.drop(request.id)

    def _close_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None

    def _report_errors(self) -> None:
        """Raise the exception of a callback; in a batch, warn, since other answers are complete."""
        requests, self._unreported = self._unreported, []
        for index, request in enumerate(requests):
            if request.error is not None and len(requests) == 1:
                raise request.error
            if request.error is not None:
                warnings.warn(f"request {index} ended early: {request.error!r}", stacklevel=3)

    def outputs(self) -> Iterator[tuple[int, RequestOutput, Round]]:
        """Yield each round with its request's index and output delta."""
        readers = [OutputReader(request) for request in self._requests]
        for round_ in self:
            yield round_.request, readers[round_.request].read([round_]), round_

    def text(self, request: int) -> str:
        return self._requests[request].answer.text

    @property
    def num_cache_bytes(self) -> int:
        return self._engine.num_cache_bytes

    def results(self) -> list[Result]:
        return [
            Result(
                list(r.prompt), r.tokens, r.answer.text, list(r.sources),
                r.answer.finish_reason or "interrupted", r.stats, r.logprobs,
            )
            for r in self._requests
        ]  # fmt: skip
