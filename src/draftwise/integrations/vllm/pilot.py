"""Between vLLM's scheduler and the controller: reads vLLM's objects, and nothing but attributes.

It needs no vLLM to be imported, so its tests hand it fakes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from draftwise.integrations.vllm.clock import Step
from draftwise.integrations.vllm.controller import Controller, Fact, Wish
from draftwise.integrations.vllm.metrics import Exporter
from draftwise.integrations.vllm.requests import Kind, kind_of, room_of
from draftwise.integrations.vllm.state import StateFile

logger = logging.getLogger("vllm.draftwise")


class Pilot:
    """Turns each step of vLLM into facts and wishes, and the controller's drafts into vLLM's.

    requests: vLLM's own table of running and waiting requests, by id. State: when the present step
    began, and how much vLLM's drafter was told to draft in it. file: where what was learnt is kept
    across restarts; exporter: of counters; both once in a while, None = not at all.
    """

    def __init__(
        self,
        controller: Controller,
        requests: Mapping[str, Any],
        longest: int,
        max_model_len: int,
        clock: Callable[[], float],
        file: StateFile | None = None,
        exporter: Exporter | None = None,
    ) -> None:
        self.controller, self._requests, self.clock = controller, requests, clock
        self._longest, self._max_model_len = longest, max_model_len
        self._file, self._exporter = file, exporter
        self._since = self._exported_s = clock()
        self._told = 0
        self._load()

    def __getitem__(self, num_requests: int) -> int:
        """vLLM's ``dynamic_sd_lookup``: how much its drafter writes in the coming step."""
        self._told = self.controller.num_to_draft
        return self._told

    def starts(self) -> None:
        """A step is being scheduled."""
        self._since = self.clock()

    def facts(self, scheduled: Any, output: Any) -> tuple[list[Fact], Step | None]:
        """What a step did to each request; and its cost, if all that it did was decoding."""
        seconds = self.clock() - self._since
        facts, num_plain = [], 0
        for id_, num_tokens in scheduled.num_scheduled_tokens.items():
            index = output.req_id_to_index.get(id_)
            if index is None or not output.sampled_token_ids:
                continue
            emitted = [int(token) for token in output.sampled_token_ids[index]]
            verified = scheduled.scheduled_spec_decode_tokens.get(id_, ())
            num_plain += bool(emitted) and num_tokens == len(verified) + 1
            if emitted:
                facts.append(Fact(id_, [int(token) for token in verified], emitted))
        decodes = num_plain == len(scheduled.num_scheduled_tokens) > 0
        total = scheduled.total_num_scheduled_tokens
        step = Step(len(facts), total, self._told, seconds) if decodes else None
        return facts, step

    def learn(self, facts: list[Fact], step: Step | None) -> None:
        """After vLLM has taken the step's tokens over: new and gone requests, what was learnt."""
        seconds = self.clock() - self._since if step is None else step.seconds
        if step is not None:
            self.controller.saw_step(step, sum(len(fact.emitted) for fact in facts))
        self.controller.learn(facts, seconds)
        for id_ in [id_ for id_ in self.controller.rows if not self._runs(id_)]:
            self.controller.end(id_)
        for fact in facts:
            if self._runs(fact.id) and not self._is_known(fact.id):
                self._begin(fact.id)
        self._keep_up()

    def draft(self, offered: Any) -> None:
        """Put the controller's drafts in the place of what vLLM's drafter wrote, or did not."""
        wishes = []
        for id_, offer in zip(offered.req_ids, offered.draft_token_ids, strict=True):
            request = self._requests.get(id_)
            if request is None or request.is_finished() or request.is_prefill_chunk:
                continue
            room = room_of(request, self._longest, self._max_model_len)
            wishes.append(Wish(id_, room, offer))
        drafts = self.controller.draft(wishes)
        offered.draft_token_ids = [list(drafts.get(id_, ())) for id_ in offered.req_ids]

    def save(self) -> None:
        """Write what was learnt, and export what was counted."""
        if self._file is not None:
            self._file.save(self.controller.state(), self.clock())
        if self._exporter is not None:
            self._exporter.export(self.controller.counts, self.controller.pace)

    def _load(self) -> None:
        learnt = {} if self._file is None else self._file.load()
        if learnt:
            try:
                self.controller.load_state(learnt)
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("what was learnt before does not fit (%s): beginning anew", error)

    def _keep_up(self) -> None:
        """Once a second for the counters, once a minute for the file."""
        now = self.clock()
        if self._exporter is not None and now - self._exported_s >= 1.0:
            self._exported_s = now
            self._exporter.export(self.controller.counts, self.controller.pace)
        if self._file is not None and self._file.is_due(now):
            self._file.save(self.controller.state(), now)

    def _runs(self, id_: str) -> bool:
        request = self._requests.get(id_)
        return request is not None and not request.is_finished()

    def _is_known(self, id_: str) -> bool:
        """Whether its row holds its text; a session whose prompt grew begins anew."""
        row = self.controller.rows.get(id_)
        return row is not None and len(row.context.tokens) == self._requests[id_].num_tokens

    def _begin(self, id_: str) -> None:
        request = self._requests[id_]
        kind = kind_of(
            request.sampling_params,
            is_guided=request.use_structured_output,
            has_text=request.prompt_token_ids is not None,
        )
        if kind is Kind.PLAIN:
            self.controller.end(id_)
        else:
            tokens = list(request.all_token_ids)
            self.controller.begin(id_, tokens, teaches=kind is Kind.SHARED)
