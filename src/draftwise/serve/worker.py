"""The worker thread, which owns the engine: it takes requests and emits deltas of answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from draftwise.engine.engine import Engine
from draftwise.engine.outputs import RequestOutput, Round
from draftwise.engine.request import Request
from draftwise.types import DraftwiseError


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The request for one answer: prompt tokens and the options of ``Speculator.request``."""

    prompt: Sequence[int]
    options: Mapping[str, Any]
    deadline_s: float | None = None


OutputCallback = Callable[[RequestOutput], None]  # called in the engine's thread; must not block


class Observer:
    """Receives the worker's events, in the engine's thread."""

    def saw_rounds(self, rounds: Sequence[Round], engine: Engine) -> None:
        """The rounds of one step."""

    def saw_part(self, num_tokens: int, gap_s: float, is_first: bool) -> None:
        """A delta of an answer, and the seconds since the previous one or the request's arrival."""

    def saw_end(self, handle: RequestHandle) -> None:
        """An answer is complete, or given up."""

    def saw_the_end(self) -> None:
        """The thread ends."""


@dataclass(slots=True, eq=False)
class RequestHandle:
    """An unfinished answer.

    request: None until the engine admits it. last_s: time of its latest tokens (before the first
    ones, its arrival time came_s). took_s: seconds until its end.
    """

    ask: GenerationRequest
    callback: OutputCallback
    came_s: float
    last_s: float
    request: Request | None = None
    num_tokens: int = 0
    took_s: float = 0.0
    finish_reason: str = ""


_LOG = logging.getLogger(__name__)
_GOING_DOWN = "the server is going down"
LAST_STEP_S = 10.0  # grace period for the step that runs when the server shuts down


class Busy(Exception):
    """The queue is full; ``retry_after_s``: seconds until a place should be free."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("the queue is full")
        self.retry_after_s = retry_after_s


class Closing(Exception):
    """The server is shutting down and accepts no more requests."""


class Worker:
    """Owns the engine.

    make: ``Speculator.request``, called in the engine's thread. max_open: most unfinished answers,
    both running and waiting. State: unfinished answers.
    """

    def __init__(
        self, engine: Engine, make: Callable[..., Any], *, max_open: int,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.engine, self._make, self._clock = engine, make, clock  # others only read counters
        self._observers = observers
        self._max_open = max_open
        self._condition = threading.Condition()
        self._new: list[RequestHandle] = []  # the condition guards these four lines
        self._cancelled: set[RequestHandle] = set()
        self.num_open = 0
        self._is_closing = self._is_stopped = self._is_given_up = False
        self._handles: list[RequestHandle] = []  # used only by the engine's thread
        self._mean_s = 1.0
        self._began_s: float | None = None  # start of the current turn; None between turns
        self._ended_s = clock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def num_waiting(self) -> int:
        """Answers without a token, including those that the engine has not taken yet."""
        return self.engine.num_waiting + len(self._new)

    @property
    def step_s(self) -> float:
        """Seconds since the current step began; 0 between steps."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._clock() - began_s

    @property
    def since_step_s(self) -> float:
        return self._clock() - self._ended_s

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_closing(self) -> bool:
        """Whether new requests are refused."""
        return self._is_closing

    def submit(
        self, requests: Sequence[GenerationRequest], callbacks: Sequence[OutputCallback]
    ) -> list[RequestHandle]:
        """Take all of these requests, or none. Errors: Busy, Closing."""
        with self._condition:
            if self._is_closing:
                raise Closing
            if self.num_open + len(requests) > self._max_open:
                raise Busy(max(1, round(self._mean_s)))
            now = self._clock()
            pairs = zip(requests, callbacks, strict=True)
            handles = [RequestHandle(*pair, came_s=now, last_s=now) for pair in pairs]
            self.num_open += len(handles)
            self._new += handles
            self._condition.notify()
        return handles

    def cancel(self, handles: Iterable[RequestHandle]) -> None:
        """Cancel these answers; finished ones are ignored."""
        with self._condition:
            self._cancelled.update(handles)
            self._condition.notify()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._condition:
            self._is_closing = True

    def stop(self, timeout_s: float) -> bool:
        """End unfinished answers after a grace period, then the thread.

        A step that does not end within ``LAST_STEP_S`` is abandoned: the answers end without it,
        and ``is_alive`` stays true. Returns whether all answers were complete.
        """
        self.close()
        with self._condition:
            is_done = self._condition.wait_for(lambda: self.num_open == 0, timeout_s)
            self._is_stopped = True
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join(LAST_STEP_S)
        if self._thread.is_alive() and not self._is_given_up:
            self._is_given_up = True
            _LOG.error("the engine's thread is stuck in a step: its requests end without it")
            for handle in [*self._handles, *self._new]:
                handle.callback(RequestOutput(finish_reason="cancelled", error=_GOING_DOWN))
        return is_done

    def turn(self) -> None:
        """Take new requests, drop cancelled ones, run one round, and emit its deltas."""
        with self._condition:
            new, self._new = self._new, []
            cancelled, self._cancelled = self._cancelled, set()
        self._handles = [*self._handles, *new]
        for handle in new:
            if handle not in cancelled:
                self._admit(handle)
        now = self._clock()
        for handle in self._handles:  # ``_end`` replaces the list, so this iterates over a copy
            deadline_s = handle.ask.deadline_s
            if handle in cancelled:
                self._give_up(handle, "cancelled", "cancelled by its client")
            elif deadline_s is not None and now - handle.came_s > deadline_s:
                self._give_up(handle, "late", "its deadline has passed")
        if self.engine.has_work:
            self._deliver(self._step())

    def _run(self) -> None:
        reason, why = "cancelled", _GOING_DOWN
        while True:
            with self._condition:
                self._condition.wait_for(self._has_something)
                if self._is_stopped:
                    break
            try:
                self._began_s = self._clock()
                self.turn()
                self._ended_s, self._began_s = self._clock(), None
            except Exception:
                # a bug: end all answers with an error, so that no client waits
                _LOG.exception("the engine's thread has failed")
                reason, why = "error", "an error of the server's own: its log has more"
                self.close()
                break
        for handle in [*self._handles, *self._new]:
            self._give_up(handle, reason, why)
        self.engine.close()
        for observer in self._observers:
            observer.saw_the_end()

    def _has_something(self) -> bool:
        return bool(self._is_stopped or self._new or self._cancelled or self.engine.has_work)

    def _admit(self, handle: RequestHandle) -> None:
        try:
            request = self._make(list(handle.ask.prompt), **handle.ask.options)
            self.engine.admit(request)
            handle.request = request
        except (DraftwiseError, ValueError) as error:
            self._give_up(handle, "refused", str(error))
        except Exception as error:
            _LOG.exception("a request could not be begun")
            self._give_up(handle, "error", f"{type(error).__name__}: {error}")

    def _step(self) -> Sequence[RequestOutput]:
        try:
            return self.engine.step()
        except Exception as error:
            # on any error: no client waits forever, and the next request gets a clean engine
            _LOG.exception("a round failed: its requests end here")
            over = [h for h in self._handles if h.request and h.request.answer.finish_reason]
            # if no request has ended, end all: the next round would fail in the same way
            for handle in over or self._handles:
                self._give_up(handle, "error", f"{type(error).__name__}: {error}")
            return []

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        parts = {output.request: output for output in outputs}
        rounds = [output.round for output in outputs if output.round is not None]
        for observer in self._observers:
            observer.saw_rounds(rounds, self.engine)
        for handle in self._handles:
            request = handle.request
            if request is None or (part := parts.get(request.id)) is None:
                continue
            if isinstance(request.error, DraftwiseError):  # the client's grammar failed
                part.finish_reason = "refused"
            if num := len(part.tokens):
                now, is_first = self._clock(), handle.num_tokens == 0
                for observer in self._observers:
                    observer.saw_part(num, now - handle.last_s, is_first)
                handle.last_s, handle.num_tokens = now, handle.num_tokens + num
            if part.finish_reason is None:
                handle.callback(part)
            else:
                self._end(handle, part)

    def _give_up(self, handle: RequestHandle, reason: str, why: str) -> None:
        """End an unfinished answer; its row, if it has one, is freed at once."""
        request = handle.request
        if request is not None and request.answer.finish_reason is None:
            with suppress(DraftwiseError):  # a failed round may have dropped the request
                self.engine.cancel(request.id)
        part = RequestOutput() if request is None else request.output()  # text that was held back
        part.finish_reason, part.error = reason, why
        self._end(handle, part)

    def _end(self, handle: RequestHandle, part: RequestOutput) -> None:
        self._handles = [one for one in self._handles if one is not handle]
        now, handle.finish_reason = self._clock(), part.finish_reason or ""
        handle.took_s = now - handle.came_s
        self._mean_s += 0.1 * (handle.took_s - self._mean_s)
        for observer in self._observers:
            observer.saw_end(handle)
        with self._condition:
            self.num_open -= 1
            self._condition.notify_all()
        handle.callback(part)
