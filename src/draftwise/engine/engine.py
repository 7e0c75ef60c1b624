"""The engine: continuous batching with a scheduler, chunked prefill and a prefix cache; and the
batch of one caller, which steps it."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from draftwise.controller.guard import Guard
from draftwise.drafters.protocol import Context
from draftwise.engine.drafting import Drafting, Pool, PrefillBudget
from draftwise.engine.loop import Loop
from draftwise.engine.outputs import RequestOutput, Result, Round, TraceWriter
from draftwise.engine.prefill import (
    PROMPT_SCORES,
    PrefillScheduler,
    PrefixCache,
    PrefixMatch,
)
from draftwise.engine.request import Request
from draftwise.nn.cache import HiddenStates
from draftwise.types import Costs, DraftwiseError

_LOG = logging.getLogger(__name__)


class Engine:
    """Continuous batching for one target and its drafters.

    A running request has a row in every KV cache, which grows with its text. Requests start in
    order of priority, as soon as memory for their maximum length is free. Rows of finished requests
    form the prefix cache.

    max_rows: maximum running requests. max_bytes: maximum size of all KV caches; None = no limit.
    num_prefixes: rows in the prefix cache; 0 = none. keeps_idle: whether they are kept while there
    is no request. Thread-safe: one lock serialises calls to all engines on the same models.
    Callbacks run in the thread that calls ``step`` and may not call it.
    """

    def __init__(
        self,
        pool: Pool,
        max_rows: int,
        max_bytes: int | None,
        num_prefixes: int,
        keeps_idle: bool = True,
    ) -> None:
        self._pool, self._max_rows, self._max_bytes = pool, max_rows, max_bytes
        self._drafter_bytes = sum(drafter.token_bytes for drafter in pool.drafters)
        self._cache = pool.target.new_cache()
        self._drafting = Drafting(pool)
        self._loop = Loop(pool, self._cache, self._drafting)
        self._prefill_scheduler = PrefillScheduler(
            pool.target, self._cache, self._drafting, self._loop
        )
        self._prefill_budget = PrefillBudget()
        self._prefix_cache = PrefixCache(num_prefixes, bool(pool.target.taps))
        self._keeps_idle = keeps_idle
        self._outdated: set[int] = set()  # ids of requests with keys of other weights
        self._drafted: set[int] = set()  # rows that are open for the drafters
        self._waiting: list[tuple[int, int, Request]] = []  # by priority, then arrival
        self._prefilling: list[Request] = []
        self._running: list[Request] = []
        self._free: list[int] = []
        self._rows, self._numbers = itertools.count(), itertools.count()
        self._is_open, self._is_stepping, self._was_allowed = True, False, True
        self._dropped: list[int] = []  # ids, from finalizers, which may run during a step
        self._isolated: set[int] = set()  # ids of requests that are prefilled one by one
        self.num_prefix_hits = 0

    def admit(self, request: Request) -> None:
        """Add a request. Raises DraftwiseError if the request can never fit, its id is in use, or
        the engine is closed.
        """
        with self.lock:
            if not self._is_open:
                raise DraftwiseError("this engine is closed: make another with Speculator.engine()")
            if request.id in self._requests():
                raise DraftwiseError(f"request {request.id} is in the engine already")
            needed = self._bytes(request.num_room)
            if self._max_bytes is not None and needed > self._max_bytes:
                raise DraftwiseError(
                    f"request {request.id} needs {needed:,} bytes of keys and values for its "
                    f"{request.num_room:,} tokens, and max_bytes is {self._max_bytes:,}: shorten "
                    "it, lower max_new_tokens, or raise the limit"
                )
            heapq.heappush(self._waiting, (-request.priority, next(self._numbers), request))

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Start waiting requests that fit, prefill some prompt tokens, and run one round.

        Returns the new output of the requests in the round and of those that ended before it. If
        the start or prefill of a request fails, that request alone ends, with its ``error``; an
        exception in a round ends all running ones. Raises DraftwiseError if called by a callback.
        """
        with self.lock:
            if self._is_stepping:
                raise DraftwiseError(
                    "a callback of a request that is being answered asked the same Speculator for "
                    "an answer: ask before, or another Speculator"
                )
            self._is_stepping = True
            requests = self._requests()
            try:
                rounds = self._step()
            except BaseException:
                for request in requests.values():
                    if (
                        request.is_over and request.outbox.sink is not None
                    ):  # without a sink, callers poll
                        request.output()
                raise
            finally:
                self._is_stepping = False
            outputs = [requests.pop(round_.request).output(round_) for round_ in rounds]
            outputs += [request.output() for request in requests.values() if request.is_over]
            if self._was_allowed != (allowed := self.drafting_allowed):
                self._was_allowed = allowed
                on = "drafts have earned back what they had lost"
                credit = self.guard.tuning.credit
                off = (
                    f"the latest drafts took longer than plain decoding by more than {credit:g} "
                    "steps, which is all that may be risked; drafts that promise much go on"
                )
                _LOG.info(
                    "drafting is switched %s (times plain decoding: %.2f lately, %.2f in all)",
                    f"on again: {on}" if allowed else f"off: {off}",
                    self.guard.recent_speed,
                    self.guard.speed,
                )
            return outputs

    def _step(self) -> list[Round]:
        self._cancel_dropped()
        try:
            self._schedule()
            self._prefill()
        except BaseException:  # Ctrl-C: partly prefilled rows are useless
            self._abandon(self._prefilling)
            raise
        if not self._running:
            return []
        start = self._pool.clock()
        try:
            rounds = self._loop.round(self._running)
        except BaseException:  # the caches are inconsistent after half a round
            self._abandon(self._running)
            raise
        self._drop_finished()
        self._prefill_budget.rounds.append(self._pool.clock() - start)
        return rounds

    def drop(self, id_: int) -> None:
        """Cancel a request at the start of the next call; safe in finalizers."""
        self._dropped.append(id_)

    def _cancel_dropped(self) -> None:
        while self._dropped:
            if found := self._requests().get(self._dropped.pop()):
                self._cancel(found)

    def cancel(self, id_: int) -> None:
        """End a request with its text so far. Raises DraftwiseError for an unknown id."""
        with self.lock:
            if id_ not in (requests := self._requests()):
                known = ", ".join(map(str, requests)) or "none"
                raise DraftwiseError(f"no request {id_} is in the engine; there are: {known}")
            self._cancel(requests[id_])

    def _cancel(self, found: Request) -> None:
        found.end("cancelled")
        self._waiting = [waiting for waiting in self._waiting if waiting[2] is not found]
        heapq.heapify(self._waiting)
        self._isolated.discard(found.id)
        if found in self._prefilling:  # a partly prefilled prompt is not worth caching
            self._prefilling.remove(found)
            self._close(found.context.row)
        self._drop_finished()

    def close(self) -> None:
        """Cancel all requests and free all memory; ``admit`` then raises DraftwiseError."""
        with self.lock:
            for request in self._requests().values():
                self._cancel(request)
            self.forget_prefixes()
            self._is_open = False

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, as is necessary when the target's weights have changed.

        Requests that are running continue, and share nothing with later ones.
        """
        with self.lock:
            while self._prefix_cache.lengths:
                self._close(self._prefix_cache.drop())
            self._outdated = {request.id for request in self.running}

    @property
    def lock(self) -> threading.RLock:
        """The lock held during each call, shared by all engines on the same models."""
        return self._pool.lock

    @property
    def has_work(self) -> bool:
        with self.lock:
            if not self._is_stepping:
                self._cancel_dropped()
            return bool(self._waiting or self._prefilling or self._running)

    @property
    def running(self) -> Sequence[Request]:
        """Requests that have a row, including those in prefill."""
        return (*self._running, *self._prefilling)

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_cache_bytes(self) -> int:
        """Bytes of the target's KV cache, including the prefix cache."""
        return self._cache.num_bytes

    @property
    def guard(self) -> Guard:
        """The guard's account of all requests: recent and total speed over plain decoding."""
        return self._pool.guard

    @property
    def drafting_allowed(self) -> bool:
        return self._pool.guard.allows_drafts

    @property
    def costs(self) -> Costs | None:
        """Costs at the current number of running requests; None if there are none."""
        return self._loop.costs(self._running) if self._running else None

    def _requests(self) -> dict[int, Request]:
        found = (*self.running, *(request for _, _, request in self._waiting))
        return {request.id: request for request in found}

    def _bytes(self, num_tokens: int) -> int:
        return num_tokens * (self._pool.target.token_bytes + self._drafter_bytes)

    def _schedule(self) -> None:
        """Start waiting requests in order while they fit.

        A request whose prefix is being prefilled waits for it and keeps its place in the queue.
        """
        later: list[tuple[int, int, Request]] = []
        try:
            while self._waiting and self.num_running + len(later) < self._max_rows:
                waiting = heapq.heappop(self._waiting)
                request = waiting[2]
                try:
                    if not self._fits(request, [other for _, _, other in later]):
                        later.append(waiting)
                        break
                    prefilling = self._prefilling_same_prefix(request)
                except Exception as error:
                    self._fail(request, error)
                    continue
                if prefilling is not None:
                    prefilling.priority = max(prefilling.priority, request.priority)
                    later.append(waiting)
                else:
                    self._try_to_start(request)
        finally:
            for waiting in later:
                heapq.heappush(self._waiting, waiting)

    def _try_to_start(self, request: Request) -> None:
        try:
            self._start(request)
            self._prefilling.append(request)
        except Exception as error:
            self._fail(request, error)
        except BaseException:  # Ctrl-C: the request is in no list
            self._abandon([request])
            raise

    def _fail(self, request: Request, error: Exception) -> None:
        request.fail(error)
        self._close(request.context.row)
        request.decider.end()

    def _fits(self, request: Request, later: Sequence[Request]) -> bool:
        """Whether a request fits at its maximum length, after ``later``; evicts cached rows."""
        if self._max_bytes is None:
            return True
        needed = (request, *later, *self.running)
        left = self._max_bytes - sum(self._bytes(r.num_room) for r in needed)
        while (kept := self._prefix_cache.lengths) and sum(map(self._bytes, kept)) > left:
            self._close(self._prefix_cache.drop())
        return left >= 0

    def _prefilling_same_prefix(self, request: Request) -> Request | None:
        if request.id in self._isolated:
            return None
        found = self._prefix_cache.find(request.context, self._sharing(self._prefilling))
        same = (r for r in self._prefilling if found is not None and r.context is found.context)
        return next(same, None)

    def _start(self, request: Request) -> None:
        found = self._cached_prefix(request)
        context, row_tokens = request.context, request.num_room
        source, length = (-1, 0) if found is None else (found.context.row, found.length)
        if self._pool.target.taps and context.is_drafted:
            context.features = HiddenStates()
        # a private request is not cached afterwards, so it must not take a cached row
        if found and not context.is_private and self._prefix_cache.take(source):
            context.row = source
            self._cache.crop(source, length)
        else:
            context.row = heapq.heappop(self._free) if self._free else next(self._rows)
            self._cache.open(context.row)
            if found is not None:
                self._cache.copy(source, context.row, length)
        self._open_for_drafters(context, row_tokens, source, length)
        if found is not None:
            self.num_prefix_hits += 1
            if context.features is not None and found.context.features is not None:
                context.features.begin_like(found.context.features, length)

    def _open_for_drafters(
        self, context: Context, row_tokens: int, source: int, length: int
    ) -> None:
        """Open the row for drafters, unless drafting is disabled; source: the row of its prefix."""
        broadcast, row = self._drafting.broadcast, context.row
        if not context.is_drafted:
            self._close_for_drafters(row)
        elif source == row and row in self._drafted:
            broadcast(lambda _, session: session.crop(context, length))
        else:
            self._drafted.add(row)
            broadcast(lambda _, session: session.open(context, row_tokens))
            if source != row and source in self._drafted:
                broadcast(lambda _, session: session.copy(source, row, length))

    def _close_for_drafters(self, row: int) -> None:
        if row in self._drafted:
            self._drafted.discard(row)
            self._drafting.broadcast(lambda _, session: session.close(row))

    def _cached_prefix(self, request: Request) -> PrefixMatch | None:
        """The reusable prefix of a prompt, without the last tokens, used to score drafters."""
        if request.logprobs.wants_prompt or request.id in self._isolated:
            return None
        found = self._prefix_cache.find(request.context, self._sharing(self._running))
        if found is None:
            return None
        there = self._cache.lengths[found.context.row]
        most = len(request.prompt) - 1 - PROMPT_SCORES
        length = self._cache.reachable(found.context.row, min(found.length, there, most))
        return PrefixMatch(found.context, length) if length > 0 else None

    def _sharing(self, requests: Sequence[Request]) -> list[Context]:
        return [request.context for request in requests if request.id not in self._outdated]

    def _prefill(self) -> None:
        """Prefill by priority, then arrival; run requests whose prefill is complete."""
        if not self._prefilling:
            return
        group = sorted(self._prefilling, key=lambda request: -request.priority)
        group = [request for request in group if request.id in self._isolated][:1] or group
        try:
            done = self._prefill_group(group)
        except Exception as error:
            self._prefill_one_by_one(group, error)
            return
        self._isolated -= {request.id for request in done}
        self._prefilling = [request for request in self._prefilling if request not in done]
        self._running += done
        self._drop_finished()

    def _prefill_group(self, requests: Sequence[Request]) -> list[Request]:
        """Prefill one chunk of these prompts; return the requests that are complete."""
        self._loop.start_lap()
        start, cost_start = self._pool.clock(), self._pool.cost_clock()
        is_idle = not self._running
        budget = self._prefill_budget.budget(is_idle)
        num = self._prefill_scheduler.prefill(requests, budget, is_idle)
        self._prefill_budget.record(num, self._pool.clock() - start)
        done = [request for request in requests if self._prefill_scheduler.is_done(request)]
        start = self._pool.cost_clock()
        may_pay = not self._pool.guard.is_in_debt
        self._prefill_scheduler.score_prompts(done, len(self._running), may_pay)
        seconds = self._pool.cost_clock() - start
        scores = any(request.decider.scores_prompt for request in done)
        self._loop.prefilled(start - cost_start, seconds if scores else 0.0)
        if guarded := [request for request in done if request.decider.is_controlled]:
            self._loop.begin(len(guarded), seconds)
        for request in done:
            request.check_callbacks()
        self._loop.end_lap("prefill")
        return done

    def _prefill_one_by_one(self, requests: Sequence[Request], error: Exception) -> None:
        """After a failed prefill, prefill each of these prompts alone from the start."""
        self._prefilling = [request for request in self._prefilling if request not in requests]
        for request in requests:
            if len(requests) == 1:
                self._isolated.discard(request.id)
                self._fail(request, error)
                continue
            self._close(request.context.row)
            request.context.row = -1
            request.logprobs.prompt = []
            self._isolated.add(request.id)
            self._try_to_start(request)

    def _drop_finished(self) -> None:
        over = [request for request in self._running if request.is_over]
        self._running = [request for request in self._running if not request.is_over]
        for request in over:
            request.decider.end()
            is_current = request.id not in self._outdated
            is_shared = request.error is None and not request.context.is_private and is_current
            context = request.context
            for row in self._prefix_cache.keep(context) if is_shared else [context.row]:
                self._close(row)
        if not (self._keeps_idle or self._requests()):
            self.forget_prefixes()

    def _abandon(self, requests: list[Request]) -> None:
        for request in requests:
            if not request.is_over:
                request.end("interrupted")
            self._close(request.context.row)
        requests.clear()

    def _close(self, row: int) -> None:
        if row >= 0:  # a request without a row has -1
            self._cache.close(row)
            self._close_for_drafters(row)
            heapq.heappush(self._free, row)


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
