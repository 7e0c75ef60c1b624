"""The adapter between vLLM's scheduler and the controller.

The adapter reads attributes of vLLM's objects and replaces their drafts. It does not import vLLM,
so tests use fakes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from draftwise.controller.controller import Controller
from draftwise.controller.costs import Step
from draftwise.errors import DraftwiseError
from draftwise.integrations.vllm.metrics import Counts
from draftwise.integrations.vllm.options import MODEL, RETRIEVAL, Tenants, Wishes, wishes_of

logger = logging.getLogger("vllm.draftwise")
T = TypeVar("T")


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


class StepClock:
    """The seconds of steps, and draftwise's own among them, by the clock ``now``.

    A step lasts from the end of the step before, or from its scheduling if the engine was idle, to
    its end. ``seconds``, ``own_s``: of the latest step that ended, without and within draftwise.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.seconds = self.own_s = self._own_s = 0.0
        self._begun = self._worked = now()
        self._num_under_way = 0

    def start(self, is_busy: bool) -> None:
        """A step is scheduled. is_busy: whether requests were left after the latest output."""
        now = self.now()
        # a longer gap: the engine did something else
        is_idle = not is_busy or now - self._worked > max(0.05, self.seconds)
        if is_idle and not self._num_under_way:
            self._begun, self._own_s = now, 0.0
        self._num_under_way += 1

    def end(self) -> None:
        """The oldest step under way has ended."""
        now, self.own_s = self.now(), self._own_s
        self._num_under_way = max(self._num_under_way - 1, 0)
        self.seconds = max(now - self._begun - self.own_s, 0.0)
        self._begun, self._own_s = now, 0.0

    @contextmanager
    def own(self) -> Iterator[None]:
        """What draftwise does inside is its own time."""
        begun = self.now()
        yield
        self._worked = self.now()
        self._own_s += self._worked - begun


class Ended(NamedTuple):
    """A finished step that is not learned from yet: vLLM's objects, and its seconds."""

    scheduled: Any
    output: Any
    seconds: float
    own_s: float


@dataclass(frozen=True, slots=True)
class Permission:
    """What a request may use. room: maximum tokens of its drafts. tenant: whose history."""

    model: bool
    retrieval: bool
    room: int
    tenant: int


@dataclass(slots=True)
class Row:
    """A decoding request. length: of its text. shares: whether its answer enters the history.
    num_model: tokens of its draft by the model."""

    request: Any
    may: Permission
    length: int
    label: str
    shares: bool
    num_model: int = 0


class Adapter:
    """Drives the controller with vLLM's steps.

    Call order: ``starts``, ``work`` while the step runs, ``came_back``, ``learn``, ``draft``.
    ``num_to_draft``: the number of tokens that the server's model drafter writes in a step.

    requests: vLLM's table of running and waiting requests, by id.
    """

    failure = "draftwise failed: nothing is drafted until the server is restarted"

    def __init__(
        self, controller: Controller, requests: Mapping[str, Any], max_model_len: int,
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        self.controller, self.clock = controller, StepClock(now)
        self._requests, self._max_model_len = requests, max_model_len
        self.counts = Counts()
        self.has_failed = self._is_busy = False
        self._tenants = Tenants()
        self._rows: dict[str, Row] = {}
        self._ended: list[Ended] = []

    @property
    def num_to_draft(self) -> int:
        return 0 if self.has_failed else self.controller.num_to_draft

    @property
    def num_running(self) -> int:
        return len(self._rows)

    @fused
    def starts(self) -> None:
        self.clock.start(self._is_busy)

    @fused
    def came_back(self, scheduled: Any, output: Any) -> None:
        """Record the end of a step, before vLLM processes its output."""
        self.clock.end()

    @fused
    def learn(self, scheduled: Any, output: Any) -> None:
        """Learn from an output that vLLM has processed, and update the requests."""
        with self.clock.own():
            self._ended.append(Ended(scheduled, output, self.clock.seconds, self.clock.own_s))
            if not self._may_wait(scheduled):
                self._learn_ended()
            self._is_busy = bool(self._requests)

    def _may_wait(self, scheduled: Any) -> bool:
        """Whether a step can be learned from later, when ``draft`` searches: it has no drafts and
        no prefill, and no request ended in it."""
        num, rows = scheduled.num_scheduled_tokens, self._rows
        return (
            len(num) == scheduled.total_num_scheduled_tokens
            and not scheduled.scheduled_spec_decode_tokens
            and num.keys() <= rows.keys() <= self._requests.keys()
        )

    def _learn_ended(self) -> None:
        ended, self._ended = self._ended, []
        for step in ended:
            self._learn(step)

    def _learn(self, step: Ended) -> None:
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
        for id_ in [id_ for id_ in self._rows if id_ not in self._requests]:
            self._end(self._rows.pop(id_))

    def _end(self, row: Row) -> None:
        self.controller.end(row.request.request_id)

    @fused
    def draft(self, offered: Any) -> None:
        """Replace the drafts of the server's model drafter with the controller's."""
        with self.clock.own():
            may_draft = any(row.may.room for row in self._rows.values())
            may_draft |= self.controller.limits.model
            if may_draft and not self.controller.rests(len(self._rows)):
                self._learn_ended()
                self._draft(offered)
            else:  # this step drafts nothing, whatever the texts are
                offered.draft_token_ids = [[] for _ in offered.req_ids]
                # the model evicts draftwise's data from the CPU caches between two steps, so
                # learning from one step takes as long as from several
                if len(self._ended) >= 8:
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
            offer = list(offered.draft_token_ids[place]) if has_model else []
            if -1 in offer:  # vLLM's placeholder
                del offer[offer.index(-1) :]
            names.append(id_)
            rows.append(row)
            rooms.append(self._room(row))
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
        """Drop the history of answers, because the weights may have changed."""
        self._learn_ended()
        self._tenants.forget()
        self._begin_running(list(self._rows))
        logger.info("draftwise: the history of answers is cleared")

    def _observe(
        self, ended: Ended, names: Sequence[str], emitted: Sequence[Sequence[int]],
        verified: Sequence[int],
    ) -> None:  # fmt: skip
        scheduled, num = ended.scheduled, len(names)
        total = self._num_tokens(scheduled)
        if not total:
            return
        guard = self.controller.guard
        step = Step(
            num, total, ended.seconds, num_drafted=self._num_drafted(scheduled),
            num_prefill=max(total - num - sum(verified), 0), own_seconds=ended.own_s,
        )  # fmt: skip
        before = guard.plain_s, guard.spent_s
        self.controller.observe(step, names, emitted, verified)
        if not names:
            return
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
        counts.add_step(num, num_emitted, ended.seconds + ended.own_s, ended.own_s)
        counts.add_drafts(MODEL, by_model, kept_of_model)
        counts.add_drafts(RETRIEVAL, drafted - by_model, accepted - kept_of_model)

    def _num_tokens(self, scheduled: Any) -> int:
        return int(scheduled.total_num_scheduled_tokens)

    def _num_drafted(self, scheduled: Any) -> int:
        """Tokens that the model drafter wrote for each request in a step."""
        has_model = self.controller.limits.model
        return int(scheduled.num_spec_tokens_to_schedule) if has_model else 0

    def _begin_running(self, names: Sequence[str]) -> None:
        for id_ in names:
            request = self._requests.get(id_)
            if request is not None and not request.is_finished():
                self._begin(request)

    def _room(self, row: Row) -> int:
        """Maximum length of the draft; the last token that a request may emit is never drafted."""
        request = row.request
        left = request.max_tokens - request.num_output_tokens - 1
        room = min(row.may.room, left, self._max_model_len - request.num_tokens - 1)
        return int(max(0, room))

    def _begin(self, request: Any) -> Row:
        """Add a request after its prefill, or again after its text has changed."""
        wishes, may, id_ = self._wishes(request), self._permission(request), request.request_id
        is_private = wishes.private or request.use_structured_output
        shares = can_draft(request) and not is_private and not distorts(request.sampling_params)
        num, left = request.num_tokens, int(request.max_tokens - request.num_output_tokens)
        self.controller.begin(
            id_, self._text(request), tenant=may.tenant, shares=shares, model=may.model,
            retrieval=may.retrieval, num_left=left if num + left < self._max_model_len else None,
        )  # fmt: skip
        self._rows[id_] = row = Row(request, may, num, wishes.label, shares)
        return row

    def _permission(self, request: Any) -> Permission:
        wishes = self._wishes(request)
        may_draft = can_draft(request) and wishes.speculation
        room = min(wishes.max_draft, self.controller.limits.max_draft) if may_draft else 0
        model, retrieval = (room > 0 and name in wishes.drafters for name in (MODEL, RETRIEVAL))
        return Permission(model, retrieval, room, self._tenants.number(request))

    def _text(self, request: Any) -> Sequence[int]:
        return list(request.all_token_ids)

    def _wishes(self, request: Any) -> Wishes:
        try:
            return wishes_of(getattr(request.sampling_params, "extra_args", None))
        except DraftwiseError as error:  # the API server rejects these, other front ends may not
            logger.warning("a request's extra_args are not used: %s", error)
            return Wishes()


def can_draft(request: Any) -> bool:
    """Whether vLLM can verify drafts for a request.

    vLLM applies min_p and logit_bias to sampled tokens, but not to verified drafts. A request
    without sampling parameters does not generate, one without tokens has embeddings as its prompt.
    """
    params = request.sampling_params
    has_tokens = request.prompt_token_ids is not None and params is not None
    return has_tokens and not (params.min_p or params.logit_bias)


def distorts(params: Any) -> bool:
    """Whether parameters that vLLM also applies to drafts make a text unfit for the history."""
    penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
    limits = params.bad_words, params.allowed_token_ids, params.min_tokens
    return penalties != (0.0, 0.0, 1.0) or any(limits)
