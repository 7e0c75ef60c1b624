"""For asynchronous scheduling: how much of vLLM's own draft each request has verified.

Steps overlap there: when a step is scheduled, the tokens of the one before are still on the device.
So nothing can be retrieved, and what a step reveals comes one step late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwise import registry
from draftwise.feedback import Revealer
from draftwise.integrations.vllm.clock import Step, StepMeter
from draftwise.integrations.vllm.options import Options
from draftwise.integrations.vllm.requests import Kind, kind_of, room_of
from draftwise.integrations.vllm.rows import Outcome
from draftwise.protocols import ChoosingTogether, Policy
from draftwise.types import PLAIN, Costs, Decision, Evidence, Plan


@dataclass(slots=True)
class _Row:
    """One request.

    coming: what was chosen for its next step. waiting: of its steps under way, oldest first; None
    for one that no decision governed, such as the end of its prompt.
    """

    policy: Policy
    revealer: Revealer
    coming: Decision | None = None
    waiting: deque[Decision | None] = field(default_factory=deque)


class Lengths:
    """Chooses lengths of one drafter, per request, and how much it drafts, per step.

    State: one policy a running request; the meter; when steps came back.
    """

    def __init__(
        self, options: Options, model: str, longest: int, max_model_len: int,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._options, self._model, self._longest = options, model, longest
        self._max_model_len, self._clock = max_model_len, clock
        self.plans = [PLAIN, *(Plan(model, n) for n in range(1, longest + 1))]
        self._seeds = np.random.SeedSequence(options.seed)
        self._rows: dict[str, _Row] = {}
        self.meter = StepMeter()
        self._since = clock()
        self.num_to_draft = longest

    def __getitem__(self, num_requests: int) -> int:
        """vLLM's ``dynamic_sd_lookup``: how much its drafter writes in the coming step."""
        return self.num_to_draft

    def choose(self, requests: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Shorten the placeholders of the requests that were just scheduled, in place.

        They are verified in the step after this one; how much is drafted then, and can be verified
        in the step after that, follows from what would have been chosen now.
        """
        rows = [(id_, requests[id_]) for id_ in ids if not requests[id_].is_prefill_chunk]
        known = [self._row(id_, request) for id_, request in rows]
        if not known:
            return
        wanted = []
        decisions = self._decide([row.policy for row in known])
        for (_, request), row, decision in zip(rows, known, decisions, strict=True):
            kind = kind_of(request.sampling_params, is_guided=request.use_structured_output)
            room = room_of(request, self._longest, self._max_model_len)
            length = 0 if kind is Kind.PLAIN else min(self.plans[decision.plan].length, room)
            request.spec_token_ids = list(request.spec_token_ids[:length])
            row.waiting.append(row.coming)
            row.coming = decision
            wanted.append(length)
        self.num_to_draft = 0 if self.meter.wants_contrast else max(wanted)

    def learn(self, requests: Mapping[str, Any], scheduled: Any, output: Any) -> None:
        """A step came back; the seconds since the one before it are what a step costs."""
        now = self._clock()
        seconds, self._since = now - self._since, now
        verified = scheduled.scheduled_spec_decode_tokens
        decodes = all(
            num == len(verified.get(id_, ())) + 1
            for id_, num in scheduled.num_scheduled_tokens.items()
        )
        num_rows = len(scheduled.num_scheduled_tokens)
        if decodes and num_rows:
            drafted = scheduled.num_spec_tokens_to_schedule
            total = scheduled.total_num_scheduled_tokens
            self.meter.saw(Step(num_rows, total, drafted, seconds))
        for id_ in scheduled.num_scheduled_tokens:
            index = output.req_id_to_index.get(id_)
            emitted = output.sampled_token_ids[index] if index is not None else ()
            if id_ in self._rows and len(emitted):
                self._tell(self._rows[id_], len(verified.get(id_, ())), len(emitted), seconds)
        for id_ in [id_ for id_ in self._rows if id_ not in requests]:
            for made, feedback in self._rows[id_].revealer.flush():
                self._rows[id_].policy.learn(made, feedback)
            del self._rows[id_]

    def _tell(self, row: _Row, num_drafted: int, num_emitted: int, seconds: float) -> None:
        """One round's outcome to the policy that chose it; of the text nothing is known."""
        decision = row.waiting.popleft() if row.waiting else None
        if decision is None:
            return
        outcome = Outcome(0, num_drafted, num_emitted - 1)
        plan = Plan(self._model, num_drafted) if num_drafted else PLAIN
        scores = {self._model: outcome.scores()} if num_drafted else {}
        evidence = Evidence(
            plan, num_drafted, outcome.num_accepted, scores, outcome.alphas(), 0, seconds
        )
        for made, feedback in row.revealer.reveal(decision, evidence):
            row.policy.learn(made, feedback)

    def _decide(self, policies: Sequence[Policy]) -> list[Decision]:
        first = policies[0]
        if not isinstance(first, ChoosingTogether):
            return [policy.choose() for policy in policies]
        rows, width = len(policies), self._longest + 1
        batch_s = self.meter.priced_s(rows, rows * width)
        prices = {self._model: self.meter.draft_s(rows)}
        costs = Costs(batch_s[rows - 1 :: rows], prices, batch_s)
        return first.choose_together(policies, costs)

    def _row(self, id_: str, request: Any) -> _Row:
        if id_ not in self._rows:
            (seed,) = self._seeds.spawn(1)
            options, plans = self._options, self.plans
            policy = registry.make_policy(options.policy, len(plans), seed, plans=plans)
            reward = registry.make_reward(options.reward)
            revealer = registry.make_feedback(options.feedback, plans=plans, reward=reward)
            self._rows[id_] = _Row(policy, revealer)
        return self._rows[id_]
