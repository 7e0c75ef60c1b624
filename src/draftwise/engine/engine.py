"""The engine: continuous batching with a scheduler, chunked prefill and a prefix cache."""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch

from draftwise.controller.guard import CREDIT, Guard
from draftwise.drafters.protocol import Context
from draftwise.engine.drafting import Drafting, Pool
from draftwise.engine.loop import Loop, as_logprobs, logprobs
from draftwise.engine.outputs import RequestOutput, Round, Stats, TokenLogprobs
from draftwise.engine.prefill import LARGEST_PIECE, PrefillBudget
from draftwise.engine.request import Request
from draftwise.nn.cache import RaggedCache
from draftwise.nn.hidden_states import HiddenStates
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import warped
from draftwise.nn.transfer import fetch
from draftwise.types import Costs, DraftwiseError, Scores

_LOG = logging.getLogger(__name__)
MIN_PREFIX_TOKENS = 32  # shortest common prefix that is reused, in tokens
PROMPT_SCORES = 16  # prompt tokens on which drafters are scored before the first round


class PrefixMatch(NamedTuple):
    """The context of a row that shares a prefix with a prompt; length: of the prefix, in tokens."""

    context: Context
    length: int


class PrefixCache:
    """An LRU cache of the rows of finished requests. num_rows: its capacity; 0 = no prefix cache.
    needs_states: whether drafters need the target's hidden states, which undrafted rows lack.
    """

    def __init__(self, num_rows: int, needs_states: bool) -> None:
        self.num_rows, self._needs_states = num_rows, needs_states
        self._kept: dict[int, Context] = {}

    def keep(self, context: Context) -> list[int]:
        """Keep the row of a finished request; return the evicted rows, possibly the same one."""
        self._kept[context.row] = context
        return [self.drop() for _ in range(len(self._kept) - self.num_rows)]

    def drop(self) -> int:
        """Evict the least recently used row and return it; raises StopIteration if empty."""
        row = next(iter(self._kept))
        del self._kept[row]
        return row

    def take(self, row: int) -> bool:
        return self._kept.pop(row, None) is not None

    @property
    def lengths(self) -> list[int]:
        return [len(context.tokens) for context in self._kept.values()]

    def find(self, prompt: Context, running: Iterable[Context]) -> PrefixMatch | None:
        """The cached or running row with the longest prefix; None below MIN_PREFIX_TOKENS."""
        if self.num_rows == 0:
            return None
        wanted = np.asarray(prompt.tokens)
        # cached rows come first: unlike running rows, they are reused without a copy
        found = [
            PrefixMatch(context, common_prefix_length(wanted, context.tokens))
            for context in (*reversed(self._kept.values()), *running)
            if context.tenant == prompt.tenant  # timing would reveal other tenants' prompts
            and not context.is_private
            and (context.is_drafted or not (prompt.is_drafted and self._needs_states))
        ]
        best = max(found, key=lambda match: match.length, default=None)
        return best if best is not None and best.length >= MIN_PREFIX_TOKENS else None


def common_prefix_length(wanted: np.ndarray, text: Sequence[int]) -> int:
    """Length of the common prefix, in tokens.

    >>> common_prefix_length(np.array([1, 2, 3]), [1, 2, 4, 5])
    2
    """
    num = min(len(wanted), len(text))
    differs = np.flatnonzero(wanted[:num] != np.asarray(text[:num]))
    return int(differs[0]) if len(differs) else num


class PrefillScheduler:
    """Prefills prompts in turns, except their last token, and scores drafters on the last ones.

    State: whether the last chunk had no part of a prompt longer than a chunk.
    """

    def __init__(
        self, target: CausalModel, cache: RaggedCache, drafting: Drafting, loop: Loop
    ) -> None:
        self._target, self._cache, self._drafting, self._loop = target, cache, drafting, loop
        self._has_waited = False

    def prefill(self, requests: Sequence[Request], budget: int, is_idle: bool) -> int:
        """Prefill about ``budget`` tokens of these prompts; return the number of tokens.

        requests: by priority, then arrival. is_idle: no request is running.
        """
        nums = self._turns(requests, budget, is_idle)
        fed: list[tuple[Request, list[int]]] = []
        for request in (one for one in requests if one.id in nums):
            start = self._cache.lengths[request.context.row]
            fed.append((request, list(request.prompt[start : start + nums[request.id]])))
        if not fed:
            return 0
        keep = max(
            len(piece) if request.logprobs.wants_prompt else min(len(piece), PROMPT_SCORES)
            for request, piece in fed
        )
        rows = [request.context.row for request, _ in fed]
        starts = [self._cache.lengths[row] for row in rows]
        logits = self._target.extend(self._cache, rows, [piece for _, piece in fed], keep)
        self._cache.settle(rows, [self._cache.lengths[row] for row in rows])
        for index, (request, piece) in enumerate(fed):
            if (features := request.context.features) is not None:
                states = {tap: hidden[index] for tap, hidden in logits.hidden.items()}
                features.put(starts[index], states)
            self._remember(request, logits.last(index, min(keep, len(piece))))
        return sum(len(piece) for _, piece in fed)

    def _turns(self, requests: Sequence[Request], budget: int, is_idle: bool) -> dict[int, int]:
        """How many tokens each prompt of the highest priority gets: short ones first.

        Prompts that end within the budget start at once, together: while nothing runs, no part of a
        longer prompt delays them, in one chunk of two. Otherwise the oldest prompt gets at least
        half of the budget, so that short ones, however many follow each other, do not starve it.
        """
        left = {request.id: self._num_left(request) for request in requests}
        waiting = [request for request in requests if left[request.id]]
        waiting = [request for request in waiting if request.priority == waiting[0].priority]
        shortest = sorted(waiting, key=lambda request: left[request.id])
        nums: dict[int, int] = {}
        room = LARGEST_PIECE if is_idle else budget // 2
        for request in shortest:
            if (num := left[request.id]) <= min(room, budget):
                nums[request.id] = num
                room -= num
        if nums and is_idle and not self._has_waited:
            self._has_waited = True
            return nums
        self._has_waited = False
        budget -= sum(nums.values())
        longer = [request for request in shortest if request.id not in nums]
        for request in longer[:1]:
            oldest = next(one for one in waiting if one.id not in nums)
            if request is not oldest:
                nums[request.id] = min(left[request.id], budget // 2)
                budget -= nums[request.id]
            nums[oldest.id] = min(left[oldest.id], budget)
        return nums

    def _num_left(self, request: Request) -> int:
        """Tokens of a prompt that are not prefilled yet, except for its last."""
        return max(0, len(request.prompt) - 1 - self._cache.lengths[request.context.row])

    def is_done(self, request: Request) -> bool:
        """Whether only the prompt's last token remains, which the first round feeds."""
        return self._num_left(request) == 0

    def score_prompts(
        self, requests: Sequence[Request], num_waiting: int, may_pay: bool = True
    ) -> None:
        """Score drafters on prompts before the first round, without a draft.

        num_waiting: running requests that wait meanwhile; if any, a prompt gets at most one probe.
        """
        asked = [r for r in requests if r.decider.scores_prompt and len(r.prompt) > 1]
        while asked:  # a shared policy learns from one request before it decides for the next
            first = {id(request.decider.policy): request for request in reversed(asked)}
            self._show(list(first.values()), num_waiting, may_pay)
            done = {id(request) for request in first.values()}
            asked = [request for request in asked if id(request) not in done]

    def _show(self, requests: Sequence[Request], num_waiting: int, may_pay: bool) -> None:
        names, score = self._drafting.names, self._drafting.score_prompts
        groups: dict[bool | None, list[Request]] = {True: [], False: [], None: []}
        for request in requests:
            # panoramic feedback scores whole prompts in any case
            free = False if request.decider.probes else None
            groups[True if request.decider.reads_everything else free].append(request)
        for everything, group in groups.items():
            found = score({r.id: names for r in group}, group, everything)
            for request in group:
                self._learn(request, found[request.id])
        if not may_pay:
            return
        most = 1 if num_waiting else None
        num_rows = 1 + num_waiting // max(len(requests), 1)  # that each probe delays
        drafters_to_probe = {r.id: r.decider.drafters_to_probe(num_rows)[:most] for r in requests}
        probed = score(drafters_to_probe, requests)
        for request in requests:
            if scores := probed[request.id]:
                self._learn(request, scores)

    def _learn(self, request: Request, scores: Mapping[str, Scores]) -> None:
        """Train the policy on scores on the prompt, as on a round without a draft."""
        if request.context.is_drafted:
            request.decider.scored(
                scores, len(request.context.tokens), self._loop.costs([request]),
                self._drafting.matches(request.context), request.answer.num_left,
            )  # fmt: skip

    def _remember(self, request: Request, block: torch.Tensor) -> None:
        context, text = request.context, request.prompt
        end = self._cache.lengths[context.row]
        if request.logprobs.wants_prompt:
            tokens = torch.tensor(text[end - len(block) + 1 : end + 1], device=block.device)
            found = fetch(logprobs(block, tokens, request.logprobs.num_top or 0))
            request.logprobs.prompt += as_logprobs(*found)
        if request.decider.scores_prompt and end == len(text) - 1:
            num = min(PROMPT_SCORES, len(block))
            first = len(text) - num
            p = warped(block[-num:], [context.span(num, first)])
            is_greedy = context.sampling.temperature == 0
            points = fetch([p.tokens])[0].astype(int).tolist() if is_greedy else list(p.probs)
            context.remember(first, points)


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
                off = (
                    f"the latest drafts took longer than plain decoding by more than {CREDIT:g} "
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
        start = self._pool.clock()
        is_idle = not self._running
        budget = self._prefill_budget.budget(is_idle)
        num = self._prefill_scheduler.prefill(requests, budget, is_idle)
        self._prefill_budget.record(num, self._pool.clock() - start)
        done = [request for request in requests if self._prefill_scheduler.is_done(request)]
        start = self._pool.cost_clock()
        may_pay = self._pool.guard.allows_drafts
        self._prefill_scheduler.score_prompts(done, len(self._running), may_pay)
        if guarded := [request for request in done if request.decider.is_guarded]:
            seconds = self._pool.cost_clock() - start
            self._loop.begin(guarded, len(self._running) + len(done), seconds)
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
