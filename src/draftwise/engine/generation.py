"""A running batch of one caller: its rounds, results and trace."""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from draftwise.engine.engine import Engine
from draftwise.engine.outputs import RequestOutput, Round, Stats, TokenLogprobs
from draftwise.engine.request import Request


class TraceWriter:
    """Writes rounds to a JSONL file; a write error ends the trace only, with a warning.

    with_text: whether lines contain the emitted tokens.
    """

    def __init__(self, path: str | Path, with_text: bool = True) -> None:
        self._path, self._with_text = Path(path), with_text
        self._file: TextIO | None = self._path.open("w", encoding="utf-8")

    def write(self, round_: Round) -> None:
        if self._file is None:
            return
        record = round_.as_json()
        if not self._with_text:
            del record["tokens"]
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            with suppress(OSError):  # closing flushes the buffer, which fails again
                self._file.close()
            self._file = None
            self._warn(error)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._warn(error)

    def _warn(self, error: OSError) -> None:
        said = f"the trace {self._path} ends here ({error}); generation continues"
        warnings.warn(said, stacklevel=3)


_NUMBERS = (
    "num_rounds", "num_drafted", "num_accepted", "num_emitted", "mean_accepted_tokens",
    "draft_acceptance_rate", "tok_per_s", "speed", "recent_speed",
    "speed_range",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """One finished answer.

    tokens: without the prompt. sources: their drafters, or ``target``. finish_reason: ``eos``,
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
            "no_draft": dict(self.stats.no_draft),
            "finish_reason": self.finish_reason,
            "num_prompt_tokens": len(self.prompt_tokens),
        }


class Generation(Iterator[Round]):
    """A running batch: iterate over its rounds, call ``results`` at any time.

    Iteration can be resumed after Ctrl-C or an error. Garbage collection of a generation cancels
    its requests.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[Request], trace: str | Path | None
    ) -> None:
        self._requests: list[Request] = []
        self._trace: TraceWriter | None = None  # for __del__, if the next line raises
        self._trace = None if trace is None else TraceWriter(trace)
        self._engine, self._unread = engine, deque[tuple[int, RequestOutput]]()
        self._wholes = [RequestOutput(stats=request.stats) for request in requests]
        for index, request in enumerate(requests):
            request.outbox.sink = partial(_receive, self._unread, index, self._wholes[index])
            engine.admit(request)
            self._requests.append(request)
        self._unreported = self._requests

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        while (round_ := self._next().round) is None:
            pass
        return round_

    def outputs(self) -> Iterator[RequestOutput]:
        """Iterate over deltas instead; each has its request's index and its ``Round``."""
        return iter(self._next, None)

    def _next(self) -> RequestOutput:
        with self._engine.lock:  # another thread's step may produce these outputs
            while not self._unread:
                if all(request.is_over for request in self._requests):
                    self._close_trace()
                    self._report_errors()
                    raise StopIteration
                self._engine.step()
            index, output = self._unread.popleft()
        round_ = output.round and replace(output.round, request=index)
        if self._trace is not None and round_ is not None:
            self._trace.write(round_)
        return replace(output, request=index, round=round_)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the requests that are not over; safe in finalizers."""
        # the garbage collector may run this during a step and in any thread
        self._close_trace()
        for request in self._requests:
            if not request.is_over:
                self._engine.drop(request.id)

    def _close_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()

    def _report_errors(self) -> None:
        """Raise the exception of a callback; in a batch, warn, as other answers are complete."""
        requests, self._unreported = self._unreported, []
        for index, request in enumerate(requests):
            if request.error is not None and len(requests) == 1:
                raise request.error
            if request.error is not None:
                warnings.warn(f"request {index} ended early: {request.error!r}", stacklevel=3)

    @property
    def error(self) -> Exception | None:
        """The first exception of a request's callback, even while others continue."""
        errors = (request.error for request in self._requests)
        return next((error for error in errors if error is not None), None)

    def results(self) -> list[Result]:
        return [
            Result(
                list(request.prompt), list(whole.tokens), whole.text, list(whole.sources),
                whole.finish_reason or "interrupted", whole.stats, list(whole.logprobs),
            )
            for request, whole in zip(self._requests, self._wholes, strict=True)
        ]  # fmt: skip


def _receive(
    unread: deque[tuple[int, RequestOutput]], index: int, whole: RequestOutput, new: RequestOutput
) -> None:
    """The sink of a request; a method would keep the generation from being collected."""
    unread.append((index, new))
    whole.add(new)
