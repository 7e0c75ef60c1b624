"""The adapter between vLLM's scheduler and the controller.

The adapter reads attributes of vLLM's objects and replaces their drafts. It does not import vLLM,
so tests use fakes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from draftwise.controller.controller import Controller
from draftwise.controller.costs import Step
from draftwise.errors import DraftwiseError
from draftwise.integrations.vllm.metrics import Counts
from draftwise.integrations.vllm.options import MODEL, RETRIEVAL, Tenants, Wishes, wishes_of

logger = logging.getLogger("vllm.draftwise")
T = TypeVar("T")

LATE_STEPS = 8
"""Plain steps without a search that the controller learns from at once: between two steps the model
evicts draftwise's data from the CPU caches, so learning from one step takes as long as several."""
PAUSE_S = 0.05
"""Seconds between two steps beyond which the engine is taken to have done something else."""


def fused(method: Callable[..., T]) -> Callable[..., T | None]:
    """Wrap a method: its first exception disables all wrapped methods of the object for good.

    An error in draftwise must not end the answers of a whole server. The object needs the
    attributes ``has_failed`` and ``failure`` (the message to log). Disabled methods return None.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> T | None:
        if self.has_failed:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception:
            self.has_failed = True
            logger.exception(self.failure)
            return None

    return call


def timed(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method of the adapter: the seconds it takes count as draftwise's overhead."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> None:
        begin = self.clock()
        method(self, *args)
        self._ended = self.clock()
        self._own_s += self._ended - begin

    return call


@dataclass(frozen=True, slots=True)
class _Ended:
    """A finished step that is not learned from yet: vLLM's objects, and the step's seconds."""

    scheduled: Any
    output: Any
    seconds: float
    own_s: float


@dataclass(slots=True)
class _Row:
    """A decoding request. length: of its text. tenant, shares: of its answer in the history.
    num_model: tokens of its draft by the model."""

    length: int
    max_draft: int
    label: str
    tenant: int = 0
    shares: bool = False
    num_model: int = 0


class Adapter:
    """Drives the controller with vLLM's steps.

    Call order: ``starts``, ``work`` while the step runs, ``came_back``, ``learn``, ``draft``. The
    adapter also serves as vLLM's ``dynamic_sd_lookup``: the number of tokens that the server's
    model drafter writes in a step.

    A step lasts from the end of the previous step, or from its scheduling if the engine was idle,
    to its end; draftwise's overhead in between is counted separately.

    requests: vLLM's table of running and waiting requests, by id.
    """

    failure = "draftwise failed: nothing is drafted until the server is restarted"

    def __init__(
        self, controller: Controller, requests: Mapping[str, Any], max_model_len: int,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.controller, self._requests, self.clock = controller, requests, clock
        self._max_model_len = max_model_len
        self.counts = Counts()
        self.has_failed = False
        self._tenants = Tenants()
        self._rows: dict[str, _Row] = {}
        self._ended_steps: list[_Ended] = []
        self._under_way = 0
        self._mark = self._ended = clock()
        self._own_s = self._seconds = self._own_before_s = 0.0
        self._is_busy = False

    def __getitem__(self, num_requests: int) -> int:
        """The number of tokens to draft (vLLM's ``dynamic_sd_lookup``), for any batch size."""
        return 0 if self.has_failed else self.controller.num_to_draft

    @property
    def num_running(self) -> int:
        return len(self._rows)

    @fused
    def starts(self) -> None:
        now = self.clock()
        waited = not self._is_busy or now - self._ended > max(PAUSE_S, self._seconds)
        if not self._under_way and waited:
            self._mark, self._own_s = now, 0.0
        self._under_way += 1

    @fused
    def came_back(self, scheduled: Any, output: Any) -> None:
        """Record the end of a step, before vLLM processes its output."""
        now = self.clock()
        self._under_way = max(self._under_way - 1, 0)
        self._own_before_s = self._own_s
        self._seconds = max(now - self._mark - self._own_before_s, 0.0)
        self._mark, self._own_s = now, 0.0

    @fused
    @timed
    def learn(self, scheduled: Any, output: Any) -> None:
        """Learn from an output that vLLM has processed, and update the requests.

        Plain steps may be learned from later, when ``draft`` searches.
        """
        self._ended_steps.append(_Ended(scheduled, output, self._seconds, self._own_before_s))
        if not self._is_plain(scheduled):
            self._learn_ended()
        self._is_busy = bool(self._requests)

    def _is_plain(self, scheduled: Any) -> bool:
        """Whether a step has no drafts and no prefill, and no request ended in it."""
        num, rows = scheduled.num_scheduled_tokens, self._rows
        return (
            len(num) == scheduled.total_num_scheduled_tokens
            and not scheduled.scheduled_spec_decode_tokens
            and num.keys() <= rows.keys() <= self._requests.keys()
        )

    def _learn_ended(self) -> None:
        steps, self._ended_steps = self._ended_steps, []
        for step in steps:
            self._learn(step)

    def _learn(self, step: _Ended) -> None:
        output = step.output
        sampled = output.sampled_token_ids or ()
        emitted = {id_: sampled[i] for id_, i in output.req_id_to_index.items() if i < len(sampled)}
        names, fresh, verified = self._decoded(step.scheduled, emitted)
        self._observe(step, names, [emitted[id_] for id_ in names], verified)
        self._end_finished()
        self._begin_running(fresh)

    def _decoded(
        self, scheduled: Any, emitted: Mapping[str, Sequence[int]]
    ) -> tuple[list[str], list[str], list[int]]:
        """Requests that decoded, those that begin or begin again, and the former's verified tokens.

        emitted: tokens by request.
        """
        names, fresh, verified = list[str](), list[str](), list[int]()
        for id_, num in scheduled.num_scheduled_tokens.items():
            if not len(emitted.get(id_, ())):
                continue
            num_verified = len(scheduled.scheduled_spec_decode_tokens.get(id_, ()))
            if id_ not in self._rows or num != num_verified + 1:
                fresh.append(id_)
                continue
            names.append(id_)
            verified.append(num_verified)
        return names, fresh, verified

    def _end_finished(self) -> None:
        for id_ in self._rows.keys() - self._requests.keys():
            del self._rows[id_]
            self.controller.end(id_)

    @fused
    @timed
    def draft(self, offered: Any) -> None:
        """Replace the drafts of the server's model drafter with the controller's."""
        may_draft = self.controller.limits.model or any(r.max_draft for r in self._rows.values())
        if may_draft and not self.controller.rests(len(self._rows)):
            self._learn_ended()
            self._draft(offered)
        else:  # this step drafts nothing, whatever the texts are
            offered.draft_token_ids = [[] for _ in offered.req_ids]
            if len(self._ended_steps) >= LATE_STEPS:
                self._learn_ended()

    def _draft(self, offered: Any) -> None:
        has_model = self.controller.limits.model
        names, rows, rooms, offers, places = [], [], [], [], []
        drafts: list[list[int]] = [[] for _ in offered.req_ids]
        for place, id_ in enumerate(offered.req_ids):
            row, request = self._rows.get(id_), self._requests.get(id_)
            if row is None or request is None or request.is_prefill_chunk or request.is_finished():
                continue
            if row.length != request.num_tokens:  # a session whose prompt was extended
                row = self._begin(request)
            names.append(id_)
            rows.append(row)
            rooms.append(self._room(request, row))
            offer = list(offered.draft_token_ids[place]) if has_model else []
            if -1 in offer:  # vLLM's placeholder
                del offer[offer.index(-1) :]
            offers.append(offer)
            places.append(place)
        chains = self.controller.choose(names, rooms, offers if has_model else None)
        for row, place, offer, chain in zip(rows, places, offers, chains, strict=True):
            drafts[place] = chain
            num = min(len(chain), len(offer))
            # the model drafter's tokens, if a chain has any, are its prefix
            row.num_model = num if num and chain[:num] == offer[:num] else 0
        offered.draft_token_ids = drafts

    @fused
    def work(self) -> None:
        self.controller.work()

    @fused
    def forget(self) -> None:
        """Drop all texts, because the weights may have changed."""
        self._learn_ended()
        self._tenants.forget()
        self._begin_running(list(self._rows))
        logger.info("draftwise: the history of answers is cleared")

    def _observe(
        self, ended: _Ended, names: Sequence[str], emitted: Sequence[Sequence[int]],
        verified: Sequence[int],
    ) -> None:  # fmt: skip
        scheduled, num = ended.scheduled, len(names)
        total = self._num_tokens(scheduled)
        if not total:
            return
        has_model, guard = self.controller.limits.model, self.controller.guard
        step = Step(
            num, total, ended.seconds,
            num_drafted=self._num_drafted(scheduled) if has_model else 0,
            num_prefill=max(total - num - sum(verified), 0), own_seconds=ended.own_s,
        )  # fmt: skip
        before = guard.plain_s, guard.spent_s
        self.controller.observe(step, names, emitted, verified)
        worth_s, spent_s = guard.plain_s - before[0], guard.spent_s - before[1]
        counts, num_emitted = self.counts, sum(map(len, emitted))
        plain_s = worth_s * num / max(num_emitted, 1)
        by_model = kept_of_model = drafted = accepted = 0
        for id_, tokens, num_drafted in zip(names, emitted, verified, strict=True):
            row, length = self._rows[id_], len(tokens)
            row.length += length
            if num_drafted:
                kept = min(length - 1, num_drafted)
                drafted += num_drafted
                accepted += kept
                by_model += min(row.num_model, num_drafted)
                kept_of_model += min(row.num_model, kept)
            if row.label:
                counts.add_label(row.label, length, spent_s, plain_s)
        counts.drafted[MODEL] += by_model
        counts.accepted[MODEL] += kept_of_model
        counts.drafted[RETRIEVAL] += drafted - by_model
        counts.accepted[RETRIEVAL] += accepted - kept_of_model
        if names:
            counts.steps += 1
            counts.rounds += num
            counts.emitted += num_emitted
            counts.step_s += ended.seconds + ended.own_s
            counts.own_s += ended.own_s

    def _num_tokens(self, scheduled: Any) -> int:
        return int(scheduled.total_num_scheduled_tokens)

    def _num_drafted(self, scheduled: Any) -> int:
        """Tokens that the model drafter wrote for each request in a step."""
        return int(scheduled.num_spec_tokens_to_schedule)

    def _begin_running(self, names: Sequence[str]) -> None:
        for id_ in names:
            request = self._requests.get(id_)
            if request is not None and not request.is_finished():
                self._begin(request)

    def _room(self, request: Any, row: _Row) -> int:
        """Maximum length of the draft; the last token that a request may emit is never drafted."""
        left = request.max_tokens - request.num_output_tokens - 1
        room = min(row.max_draft, left, self._max_model_len - request.num_tokens - 1)
        return int(max(0, room))

    def _begin(self, request: Any) -> _Row:
        """Add a request after its prefill, or again after its text has changed."""
        params = request.sampling_params
        wishes = self._wishes(params)
        can_draft = request.prompt_token_ids is not None and verifies(params)
        limit = min(wishes.max_draft, self.controller.limits.max_draft)
        if not (can_draft and wishes.speculation):
            limit = 0
        num, left = request.num_tokens, int(request.max_tokens - request.num_output_tokens)
        is_private = wishes.private or request.use_structured_output
        tenant = self._tenants.number(request)
        shares = can_draft and not is_private and not distorts(params)
        self.controller.begin(
            request.request_id,
            self._text(request),
            tenant=tenant,
            shares=shares,
            model=limit > 0 and MODEL in wishes.drafters,
            retrieval=limit > 0 and RETRIEVAL in wishes.drafters,
            num_left=left if num + left < self._max_model_len else None,
        )
        row = self._rows[request.request_id] = _Row(num, limit, wishes.label, tenant, shares)
        return row

    def _text(self, request: Any) -> Sequence[int]:
        return list(request.all_token_ids)

    def _wishes(self, params: Any) -> Wishes:
        try:
            return wishes_of(getattr(params, "extra_args", None))
        except DraftwiseError as error:  # the API server rejects these, other front ends may not
            logger.warning("a request's extra_args are not used: %s", error)
            return Wishes()


def verifies(params: Any) -> bool:
    """Whether vLLM can verify drafts under ``SamplingParams``; None: the request does not generate.

    vLLM applies min_p and logit_bias to sampled tokens, but not to verified drafts.
    """
    return params is not None and not (params.min_p or params.logit_bias)


def distorts(params: Any) -> bool:
    """Whether parameters that vLLM also applies to drafts make a text unfit for the history."""
    penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
    limits = params.bad_words, params.allowed_token_ids, params.min_tokens
    return penalties != (0.0, 0.0, 1.0) or any(limits)
