"""The adapter for vLLM's runner V2 with asynchronous scheduling, where drafts stay on the device.

A step is scheduled while the one before it computes, and its drafts are written on the device. The
scheduler decides one step ahead (``Orders``), the workers choose drafters (``mixer``), and what was
proposed comes back with the step that verified it (``Reports``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from draftwise.controller import mixing
from draftwise.controller.acceptance import Int32
from draftwise.controller.mixing import Hazards
from draftwise.integrations.vllm.adapter import Adapter, Ended, Permission, Row, fused
from draftwise.integrations.vllm.demand import Demand
from draftwise.retrieval.index import PROMPT_TAIL, Numbers, Tokens
from draftwise.retrieval.kernels import Proposals
from draftwise.types import Floats, Ints

NUM_FACTS = 8
"""Facts of a row after its tokens: see ``kernels.FACTS``."""
NAME = "draftwise"
"""Attribute of vLLM's ``SchedulerOutput`` (Orders) and of its ``ModelRunnerOutput`` (Report)."""


class Answer(NamedTuple):
    """An answer that enters the history: tokens ``begin`` to ``end`` of an ended request."""

    name: str
    begin: int
    end: int
    tenant: int


@dataclass(frozen=True, slots=True)
class Orders:
    """Decisions of the scheduler for the drafts that a step writes; the same for every rank.

    head: tokens that the model drafter writes. price: expected tokens that a verified token must
    bring. hazards: of the tables of all requests; None: this step writes no drafts. names, factors:
    [requests, 2] of the hazards. begun: requests that begin, or begin again, in a slot of the
    worker. ended: answers for the history. forgets: whether the history is cleared first. budget:
    drafted tokens that this step verifies, which the device divides among the requests; None: all
    that are scheduled.
    """

    head: int = 0
    price: float = 0.0
    hazards: Hazards | None = None
    names: Sequence[str] = ()
    factors: Floats = field(default_factory=lambda: np.ones((0, 2), np.float32))
    begun: Mapping[str, Permission] = field(default_factory=dict)
    ended: Sequence[Answer] = ()
    forgets: bool = False
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Drafts of an earlier step: ``facts[i]`` int32 [4 * max_draft + NUM_FACTS] of ``names[i]``."""

    names: Sequence[str]
    facts: Int32


class Reports:
    """Retrieved drafts as the device reported them, in place of the controller's own index."""

    def __init__(self, max_draft: int) -> None:
        self._num = max_draft
        self._facts = np.zeros((16, 4 * max_draft + NUM_FACTS), np.int32)

    def put(self, slots: Numbers, facts: Int32 | int) -> None:
        """Store the latest facts of requests, [requests, 4 * max_draft + NUM_FACTS]; 0: none."""
        if len(slots) and (most := int(np.max(slots))) >= len(self._facts):
            more = np.zeros((most + 1, self._facts.shape[1]), np.int32)
            self._facts = np.concatenate([self._facts, more])
        self._facts[slots] = facts

    def heads(self, slots: Numbers) -> list[list[int]]:
        """The drafts that the model wrote."""
        facts, begin = self._facts[slots], 2 * self._num
        tokens = facts[:, begin : begin + self._num].tolist()
        return [row[: max(num, 0)] for row, num in zip(tokens, facts[:, -1].tolist(), strict=True)]

    def drafters(self, slots: Numbers) -> tuple[Int32, Int32]:
        """Who drafted, and how many tokens the model wrote."""
        drafters, wrote = self._facts[slots, -2:].T
        return drafters, np.maximum(wrote, 0)

    def survival(self, slots: Numbers) -> Floats:
        """[requests, max_draft] probabilities that a draft is accepted up to each token."""
        begin = 3 * self._num
        confidence = self._facts[slots, begin : begin + self._num] / 1e6
        return np.asarray(np.cumprod(confidence, axis=1))

    def open(self, slot: int, tokens: Tokens, *, tenant: int = 0, shares: bool = True) -> None:
        self.put([slot], 0)

    def close(self, slot: int) -> None: ...

    def extend(self, slots: Numbers, tokens: Tokens, counts: Numbers) -> None: ...

    def work(self, max_tokens: int) -> bool:
        return False

    def propose(self, slots: Numbers, limits: Numbers) -> Proposals:
        """Retrieval from the texts of ``slots``, at most ``limits`` tokens each."""
        return self._proposals(slots, 0, limits)

    def propose_after(
        self, slots: Numbers, drafts: Int32, num_drafted: Numbers, limits: Numbers
    ) -> Proposals:
        """Retrieval after the model's drafts; none after other drafts than those reported."""
        is_reported = self._facts[slots, -1] == num_drafted
        return self._proposals(slots, 1, np.multiply(limits, is_reported))

    def _proposals(self, slots: Numbers, which: int, limits: Numbers) -> Proposals:
        num, begin = self._num, 4 * self._num + 3 * which
        tokens = self._facts[slots, which * num : (which + 1) * num]
        match, hits, agree = self._facts[slots, begin : begin + 3].T
        count = np.maximum(np.minimum(limits, num), 0) * (match > 0)
        return Proposals(
            tokens, count.astype(np.int32), match, hits, hits * (agree > 0), match < 0
        )  # fmt: skip


class AsyncAdapter(Adapter):
    """Drives the controller with overlapping steps, one step ahead.

    Call order: ``starts``, ``shorten`` before a step is scheduled, ``orders`` after it, ``work``
    while it runs, ``came_back``, ``learn``. All of draftwise's overhead counts as added time,
    although part of it may pass while the device computes.

    width: columns of the device's table of drafts, all of which a step writes. fallback: tokens
    that vLLM's own drafter writes after a failure. divides: whether the device divides a budget of
    drafted tokens among the requests (vLLM's adaptive verification); otherwise each request's
    length is decided here.
    """

    failure = "draftwise failed: vLLM's own drafts are verified until the server is restarted"

    def __init__(
        self, *args: Any, reports: Reports, width: int, fallback: int, divides: bool = False
    ) -> None:
        super().__init__(*args)
        self._reports, self._width, self._fallback = reports, width, fallback
        self._divides, self._demand = divides, Demand(self.controller.limits.max_draft)
        self._emitted: dict[str, list[int]] = {}
        self._wanted: dict[str, int] = {}
        self._usual, self._told, self._rests = 0.0, 0, False
        self._changed: set[str] = set()
        self._answers: list[Answer] = []
        self._forgets = False

    @property
    def num_to_draft(self) -> int:
        if self.has_failed:
            return self._fallback
        return self._width if self._mixes else 0

    @property
    def _mixes(self) -> bool:
        """Whether the next step writes drafts: without the model's, retrieval may."""
        controller = self.controller
        return not self._rests and (controller.num_to_draft > 0 or controller.limits.retrieval)

    @fused
    def shorten(self) -> None:
        """Truncate each request's placeholders to the tokens worth verifying.

        A request whose drafts are not known yet gets the usual length of the others.
        """
        with self.clock.own():
            usual = round(self._usual)
            most = self._width if round(self._usual * self.num_running) else 0
            for id_, request in self._requests.items():
                if not request.spec_token_ids:
                    continue
                row = self._rows.get(id_) or self._begin(request)
                left = request.max_tokens - request.num_output_tokens
                left -= getattr(request, "num_output_placeholders", 0)
                room = max(0, min(self._room(row), left))
                length = min(most if self._divides else self._wanted.get(id_, usual), room)
                request.spec_token_ids = list(request.spec_token_ids[:length])

    @fused
    def orders(self, scheduled: Any) -> Orders:
        """Orders for the workers, with the step that was just scheduled; None after a failure."""
        controller, names = self.controller, list(self._changed)
        begun = {new.req_id: self._on_device(new.req_id) for new in scheduled.scheduled_new_reqs}
        orders = Orders(
            begun=begun, ended=self._answers, forgets=self._forgets,
            budget=self._budget(scheduled) if self._divides else None,
        )  # fmt: skip
        self._answers, self._forgets = [], False
        self._told = 0 if self._rests else controller.num_to_draft
        if not self._mixes:
            return orders
        self._changed.clear()
        return replace(
            orders, head=self._told, price=controller.price, hazards=controller.hazards,
            names=names, factors=controller.factors(names).astype(np.float32),
        )  # fmt: skip

    def _budget(self, scheduled: Any) -> int:
        """Drafted tokens that are worth verifying in a step, by the demand of an earlier one."""
        drafts = scheduled.scheduled_spec_decode_tokens.values()
        return min(round(self._usual * len(drafts)), sum(map(len, drafts)))

    def _on_device(self, id_: str) -> Permission:
        may, limits = self._permission(self._requests[id_]), self.controller.limits
        return replace(
            may, model=may.model and limits.model, retrieval=may.retrieval and limits.retrieval
        )

    @fused
    def came_back(self, scheduled: Any, output: Any) -> None:
        """Record the end of a step; vLLM truncates its tokens when it processes the output."""
        self.clock.end()
        sampled, places = output.sampled_token_ids or (), output.req_id_to_index.items()
        self._emitted = {id_: list(sampled[i]) for id_, i in places if i < len(sampled)}

    @fused
    def learn(self, scheduled: Any, output: Any) -> None:
        """Learn from an output that vLLM has processed, and choose the next lengths.

        A step without a report ends drafting: a worker has failed, and its log says why.
        """
        is_run = scheduled.total_num_scheduled_tokens > 0
        if is_run and orders_of(scheduled) and getattr(output, NAME, None) is None:
            self.has_failed = True
        super().learn(scheduled, output)

    def _may_wait(self, scheduled: Any) -> bool:
        return False

    def _learn(self, step: Ended) -> None:
        controller = self.controller
        is_told = self._put(getattr(step.output, NAME, None))
        names, fresh, verified = self._decoded(step.scheduled, self._emitted)
        has_choice = not self._rests and not controller.limits.retrieval  # of the head's length
        if is_told or self._told or any(verified) or has_choice:
            verified = self._compare(step, names, verified, is_told)
        elif names:
            controller.rest(len(names))
            self._wanted, self._usual = {}, 0.0
        self._observe(step, names, [self._emitted[id_] for id_ in names], verified)
        if names:
            self._rests = not controller.wants_drafts(len(names))
        self._end_finished()
        self._begin_running([id_ for id_ in fresh if id_ not in self._rows])

    def _put(self, report: Report | None) -> bool:
        """Store the facts of a step's drafts; whether there are any."""
        if report is None or not report.names:
            return False
        places = [i for i, id_ in enumerate(report.names) if id_ in self.controller]
        slots = self.controller.slots([report.names[i] for i in places])
        self._reports.put(slots, report.facts[places])
        return True

    def _compare(
        self, step: Ended, names: Sequence[str], verified: list[int], is_told: bool
    ) -> list[int]:
        """Choose the next lengths, then tell the controller what drafters had proposed for a step.

        Returns how many tokens of each draft the step verified.
        """
        controller, reports = self.controller, self._reports
        rows, slots = [self._rows[id_] for id_ in names], controller.slots(names)
        rooms = [
            self._room(row) if id_ in self._requests else row.may.room
            for id_, row in zip(names, rows, strict=True)
        ]
        drafters, wrote = reports.drafters(slots)
        kept = np.array([len(self._emitted[id_]) - 1 for id_ in names], np.int64)
        orders = orders_of(step.scheduled)
        if orders is not None and orders.budget is not None:
            verified = self._divided(slots, kept, verified, orders.budget)
        if is_told:
            alive, longest = reports.survival(slots), max(wrote.tolist(), default=0)
            self._demand.learn(alive, np.array(verified, np.int64), kept)
            self._demand.observe(slots, alive, longest)
        self._choose(names, rooms, slots, is_told)
        controller.recall(names, rooms, reports.heads(slots) if controller.limits.model else None)
        by_model = np.minimum(verified, wrote) * (drafters == mixing.MODEL)
        for row, num in zip(rows, by_model.tolist(), strict=True):
            row.num_model = num
        controller.plays(names, by_model, np.subtract(verified, by_model))
        self._changed.update(names)
        reports.put(slots, 0)
        return verified

    def _choose(
        self, names: Sequence[str], rooms: Sequence[int], slots: Ints, is_told: bool
    ) -> None:
        """Choose lengths for the drafts that the step under way writes.

        They are not known. The controller chooses as if its model's tokens, of which only the
        number is known, came with the retrieval of the drafts that came back, and names the price;
        how many tokens are worth it follows from the drafts of recent steps.
        """
        controller, demand, num = self.controller, self._demand, len(names)
        offers = [[0] * self._told] * num if controller.limits.model else None
        chosen = controller.choose(names, rooms, offers, is_searched=is_told)
        lengths = list(map(len, chosen))
        if controller.terms is not None and demand.knows(self._told):
            terms = self._told, *controller.terms
            if wanted := controller.num_to_draft:
                price = controller.costs.draft_seconds
                controller.num_to_draft = demand.head(num, wanted, *controller.terms, price)
            if self._divides:
                self._wanted, self._usual = {}, demand.budget(num, *terms) / num
                return
            lengths = demand.lengths(slots, rooms, *terms)
        self._wanted = dict(zip(names, lengths, strict=True))
        self._usual = sum(lengths) / max(num, 1)

    def _divided(
        self, slots: Numbers, kept: Ints, capacities: Sequence[int], budget: int
    ) -> list[int]:
        """How the device has divided a budget: the host does the same, except for ties."""
        alive = self._reports.survival(slots)
        found = mixing.divide(alive, np.array(capacities, np.int64), budget)
        nums: list[int] = np.minimum(np.maximum(found, kept), capacities).tolist()
        return nums

    def _end(self, row: Row) -> None:
        request, id_ = row.request, row.request.request_id
        self._demand.end(*self.controller.slots([id_]).tolist())
        self._changed.discard(id_)
        super()._end(row)
        if row.shares and request.num_output_tokens:
            begin = max(request.num_prompt_tokens - PROMPT_TAIL, 0)
            self._answers.append(Answer(id_, begin, request.num_tokens, row.may.tenant))

    @fused
    def forget(self) -> None:
        """Drop the history, because the weights may have changed."""
        self._answers, self._forgets = [], True
        super().forget()

    def _num_tokens(self, scheduled: Any) -> int:
        total, orders = super()._num_tokens(scheduled), orders_of(scheduled)
        if orders is None or orders.budget is None:
            return total
        drafted = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        return total - max(drafted - orders.budget, 0)

    def _num_drafted(self, scheduled: Any) -> int:
        orders = orders_of(scheduled)
        return orders.head if orders is not None and self.controller.limits.model else 0

    def _text(self, request: Any) -> Sequence[int]:
        return range(request.num_tokens)


def orders_of(scheduled: Any) -> Orders | None:
    """The orders that went out with a step."""
    return getattr(scheduled, NAME, None)
