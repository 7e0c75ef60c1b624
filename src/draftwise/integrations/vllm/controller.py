"""The drafters of all running requests: vLLM's facts in, drafts out; it knows no vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwise import registry
from draftwise.feedback import Revealer
from draftwise.integrations.vllm.arms import Arms
from draftwise.integrations.vllm.clock import Step, StepMeter
from draftwise.integrations.vllm.metrics import Count, Pace
from draftwise.integrations.vllm.options import Options
from draftwise.integrations.vllm.rows import Outcome, Row, new_context
from draftwise.protocols import ChoosingTogether, Policy, PricingPlans
from draftwise.types import PLAIN, Costs, Decision, DraftwiseError, Plan

UNAVAILABLE_S = 1e6
"""Seconds of a drafter that wrote nothing for the coming round: dearer than anything."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server allows.

    longest: tokens of a draft. budget: tokens of a step, of all requests together. capacity:
    tokens of a text. model: the name of vLLM's own drafter, or None.
    """

    longest: int
    budget: int
    capacity: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """A request that decodes in the next step.

    room: tokens that its draft may have. offer: what vLLM's own drafter wrote for it.
    """

    id: str
    room: int
    offer: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """What a step did to one request: drafted tokens that were verified, tokens emitted."""

    id: str
    verified: Sequence[int]
    emitted: Sequence[int]


class Controller:
    """Chooses and learns for every running request of one engine.

    Each step: ``saw_step``, then ``learn`` for what it emitted, ``begin`` and ``end`` for what came
    and went, then ``draft`` for the next one. vLLM's own drafter writes for all requests or for
    none, before anything of its step is known: ``num_to_draft`` is decided one step ahead, at
    its full price; once it has written, its tokens cost nothing more than their verification.
    A request begins with what the policy of the one that ended last knew, unless that one was not
    to teach others.
    State: one ``Row`` a running request; the meter; that policy's state; what drafters share.
    """

    def __init__(self, options: Options, limits: Limits) -> None:
        self._options, self._limits = options, limits
        self._arms = Arms(options.drafters)
        names = [*self._arms.names, *([limits.model] if limits.model else [])]
        if len(set(names)) < len(names) or not names:
            raise DraftwiseError(f"drafters {names}: name at least one, and each only once")
        lengths = range(1, limits.longest + 1)
        self.plans = [PLAIN, *(Plan(name, n) for name in names for n in lengths)]
        self._seeds = np.random.SeedSequence(options.seed)
        # unknown names and options are refused now
        self._prices_plans = isinstance(self._policy(), PricingPlans)
        registry.make_reward(options.reward), self._revealer()
        self.rows: dict[str, Row] = {}
        self.meter = StepMeter()
        self.counts = {plan: Count() for plan in self.plans}
        self.pace = Pace()
        self._heritage: dict[str, Any] | None = None
        self.num_to_draft = limits.longest if limits.model else 0

    def begin(self, id_: str, prompt: Sequence[int], teaches: bool = True) -> None:
        """A request has read its prompt and is about to decode; ``teaches`` others, or does not."""
        self.end(id_)
        policy = self._policy()
        if self._heritage is not None:
            policy.load_state(self._heritage)
        row = Row(new_context(prompt), policy, self._revealer(), teaches)
        self._arms.open(row.context, self._limits.capacity, teaches)
        row.meet(self._arms.matches(row.context))
        self.rows[id_] = row

    def end(self, id_: str) -> None:
        """A request is gone: finished, cancelled, or never known."""
        row = self.rows.pop(id_, None)
        if row is not None:
            row.finish()
            self._arms.close(row.context)
            if row.teaches:
                self._heritage = row.policy.state()

    def saw_step(self, step: Step, num_emitted: int) -> None:
        """A step in which every request decoded, as vLLM's clock saw it."""
        self.pace.add(num_emitted, self.meter.expected_s(step), step.seconds)
        self.meter.saw(step)

    def learn(self, facts: Sequence[Fact], seconds: float) -> None:
        """What a step of so many seconds made known; requests that are not known are left out."""
        known = [(fact, self.rows[fact.id]) for fact in facts if fact.id in self.rows]
        outcomes = []
        for fact, row in known:
            outcomes.append(Outcome.of(len(row.context.tokens), fact.verified, fact.emitted))
            row.extend(fact.emitted)
        found = self._arms.read([row.context for _, row in known])
        for (_, row), outcome, scores in zip(known, outcomes, found, strict=True):
            if outcome.num_drafted and row.played.drafter == self._limits.model:
                scores[row.played.drafter] = outcome.scores()
            row.learn(outcome, scores, self._arms.matches(row.context), seconds)
            self._count(row, outcome)
            row.plays(row.decision, PLAIN, ())

    def draft(self, wishes: Sequence[Wish]) -> dict[str, tuple[int, ...]]:
        """The draft of each request's next step, empty where plain decoding is best."""
        known = [(wish, self.rows[wish.id]) for wish in wishes if wish.id in self.rows]
        if not known:
            return {}
        num_offered = max(len(wish.offer) for wish, _ in known)
        rows = [row for _, row in known]
        drafts: dict[str, tuple[int, ...]] = {}
        left = self._most(len(known))
        for (wish, row), decision in zip(known, self._decide(rows, num_offered), strict=True):
            plan, length = self.plans[decision.plan], min(wish.room, left)
            row.plays(decision, plan, self._write(row, plan, min(plan.length, length), wish.offer))
            drafts[wish.id] = row.draft
            left -= len(row.draft)
        if self._limits.model:
            self._look_ahead(rows)
        return drafts

    def _most(self, rows: int) -> int:
        """Drafted tokens of one step: within vLLM's budget.

        Where plans are priced, not far beyond what was, and none where one without is due.
        """
        left = self._limits.budget - rows
        if not self._prices_plans:
            return left
        return 0 if self.meter.wants_plain(rows) else min(left, self.meter.most_extra(rows))

    def costs(self, rows: int, draft_s: float) -> Costs:
        """Of a step of so many requests; ``draft_s``: of a step of vLLM's own drafter."""
        width = self._limits.longest + 1
        batch_s = self.meter.priced_s(rows, rows * width)
        prices = dict.fromkeys(self._arms.names, 0.0)
        if self._limits.model:
            prices[self._limits.model] = draft_s
        return Costs(batch_s[rows - 1 :: rows], prices, batch_s)

    def state(self) -> dict[str, Any]:
        """What outlives a restart, as plain JSON."""
        return {"meter": self.meter.state(), "policy": self._heritage}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state`` gave; ValueError or KeyError if it does not fit."""
        heritage = state["policy"]
        if heritage is not None:
            self._policy().load_state(heritage)
        self._heritage = heritage
        self.meter.load_state(state["meter"])

    def _count(self, row: Row, outcome: Outcome) -> None:
        """A round under its plan; cut short by the text's end it counts as what was drafted."""
        plan = PLAIN
        if outcome.num_drafted:
            plan = Plan(row.played.drafter, outcome.num_drafted)
        accepted = outcome.num_accepted
        self.counts[plan].add(outcome.num_drafted, accepted, accepted + 1)

    def _decide(self, rows: Sequence[Row], num_offered: int) -> list[Decision]:
        """What is best now that vLLM's own drafter has written, or has not."""
        policies = [row.policy for row in rows]
        if isinstance(policies[0], ChoosingTogether):
            written_s = 0.0 if num_offered else UNAVAILABLE_S
            return policies[0].choose_together(policies, self.costs(len(rows), written_s))
        return [row.ahead or row.policy.choose() for row in rows]

    def _look_ahead(self, rows: Sequence[Row]) -> None:
        """How much vLLM's own drafter is to write in the coming step, for the one after it."""
        policies = [row.policy for row in rows]
        if isinstance(policies[0], ChoosingTogether):
            costs = self.costs(len(rows), self.meter.draft_s(len(rows)))
            decisions = policies[0].choose_together(policies, costs)
        else:
            decisions = [row.policy.choose() for row in rows]
            for row, decision in zip(rows, decisions, strict=True):
                row.ahead = decision
        plans = [self.plans[decision.plan] for decision in decisions]
        lengths = [plan.length for plan in plans if plan.drafter == self._limits.model]
        self.num_to_draft = 0 if self.meter.wants_contrast else max(lengths, default=0)

    def _write(self, row: Row, plan: Plan, length: int, offer: Sequence[int]) -> tuple[int, ...]:
        """At most ``length`` tokens by the plan's drafter."""
        if length < 1:
            return ()
        if plan.drafter == self._limits.model:
            return tuple(offer[:length])
        return self._arms.propose(row.context, plan, length)

    def _policy(self) -> Policy:
        (seed,) = self._seeds.spawn(1)
        return registry.make_policy(self._options.policy, len(self.plans), seed, plans=self.plans)

    def _revealer(self) -> Revealer:
        # a policy that prices plans by the evidence needs no reward to value them
        reward = None if self._prices_plans else registry.make_reward(self._options.reward)
        return registry.make_feedback(self._options.feedback, plans=self.plans, reward=reward)
