"""Playing: one policy on one text, as a generator of flat rows that everything else consumes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwise import registry
from draftwise.protocols import Looking, Mixing, PlayingAll, Policy, PricingPlans, StopRule
from draftwise.types import Decision, DraftwiseError, Evidence, Plan
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.hindsight import rounds_to_reach
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.text import Text

Row = dict[str, Any]
"""One round: seed, domain, text, policy, round, plan, plan_index, drafted, accepted, emitted,
position (tokens emitted so far), seconds (of the round), regret (rounds so far, less those that
the best fixed plan takes to the same position), is_best, and, if asked for, estimates [K]."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy with what it plays on and learns from; ``label`` is what tables call it."""

    label: str
    policy: str
    reward: str
    feedback: str
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """The best fixed plans in hindsight: ``ends`` of the one with the fewest rounds on this text,
    and the index, among the contestant's plans, of the one with the fewest seconds."""

    ends: Sequence[int]
    plan: int


def guides_of(plans: Sequence[Plan]) -> dict[str, StopRule]:
    """The stop rules that plans name; ``fixed`` needs none.

    Raises DraftwiseError for a rule that reads hidden states: simulated text has none.
    """
    rules = {plan.rule for plan in plans} - {"fixed"}
    guides = {rule: registry.make_guide(rule) for rule in sorted(rules)}
    for rule, guide in guides.items():
        if guide.needs_hidden:
            raise DraftwiseError(f"rule {rule!r} reads hidden states, and simulated text has none")
    return guides


def first_impressions(
    request: SimulatedRequest, policy: Policy, *, everyone: bool
) -> Iterator[Evidence]:
    """What the prompt tells, as the engine asks it: a policy that takes looks chooses them.

    The policy has to learn each before the next is asked for.
    """
    asks_itself = isinstance(policy, Looking) and not everyone
    yield request.prompt_evidence(request.retrieving if asks_itself else None)
    if asks_itself and isinstance(policy, Looking) and (looks := policy.curious()):
        yield request.prompt_evidence(looks)


def play(
    text: Text, contestant: Contestant, costs: CostTable, reference: Reference,
    seed: np.random.SeedSequence, tags: Mapping[str, Any], *, with_estimates: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """Every round of one policy on one text; ``tags`` (seed, domain) go into every row.

    Raises DraftwiseError for an unknown policy, reward or feedback.
    """
    plans = contestant.plans
    policy = registry.make_policy(
        contestant.policy, len(plans), seed, plans=plans, request_tokens=text.limit
    )
    reward = None
    if not isinstance(policy, PricingPlans):  # else the evidence says it all
        reward = registry.make_reward(contestant.reward)
    revealer = registry.make_feedback(contestant.feedback, plans=plans, reward=reward)
    request = SimulatedRequest(text, plans, costs, guides_of(plans))
    told_s = 0.0  # seconds that rows have told so far; the first row carries the prompt's
    if contestant.feedback.partition(":")[0] in {"free", "panoramic"}:
        for evidence in first_impressions(request, policy, everyone=revealer.panoramic):
            for made, feedback in revealer.reveal(Decision(0, 1.0, 0), evidence):
                policy.learn(made, feedback)
    while not request.is_done:
        decision = policy.choose()
        position = request.position
        everyone = revealer.panoramic and (request.num_rounds + 1) % revealer.every == 0
        if isinstance(policy, PlayingAll):
            evidence = request.play_all(plans)
        else:
            evidence = request.play(
                plans[decision.plan], scores_everyone=everyone,
                mixer=policy.mixer if isinstance(policy, Mixing) else None,
                looks=policy.curious() if isinstance(policy, Looking) else (),
            )  # fmt: skip
        for made, feedback in revealer.reveal(decision, evidence):
            policy.learn(made, feedback)
        if request.is_done:
            for made, feedback in revealer.flush():
                policy.learn(made, feedback)
        yield {
            **tags,
            "text": text.name,
            "policy": contestant.label,
            "round": request.num_rounds,
            "plan": str(evidence.plan),
            "plan_index": decision.plan,
            "drafted": evidence.num_drafted,
            "accepted": evidence.num_accepted,
            "emitted": request.position - position,
            "position": request.position,
            "seconds": request.seconds - told_s,
            "regret": request.num_rounds - rounds_to_reach(reference.ends, request.position),
            "is_best": decision.plan == reference.plan,
            "estimates": policy.estimates().tolist() if with_estimates else None,
        }
        told_s = request.seconds


@dataclass(frozen=True, slots=True)
class Trail:
    """The course of one run, by round: position, cumulative regret, whether the best plan played,
    and estimates [R, K] if they were kept."""

    positions: list[int]
    regrets: list[int]
    is_best: list[bool]
    estimates: list[list[float]]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one text, in sums."""

    seed: int
    domain: str
    text: str
    policy: str
    rounds: int
    tokens: int
    drafted: int
    accepted: int
    seconds: float
    regret: float
    best_plan_ratio: float
    trail: Trail | None = None


def fold(rows: Iterator[Row], *, with_trail: bool = False) -> Run:
    """All rows of one run as its sums."""
    seen = list(rows)
    first, last = seen[0], seen[-1]
    trail = None
    if with_trail:
        trail = Trail(
            [row["position"] for row in seen],
            [row["regret"] for row in seen],
            [row["is_best"] for row in seen],
            [row["estimates"] for row in seen if row["estimates"] is not None],
        )
    return Run(
        seed=first["seed"],
        domain=first["domain"],
        text=first["text"],
        policy=first["policy"],
        rounds=len(seen),
        tokens=last["position"],
        drafted=sum(row["drafted"] for row in seen),
        accepted=sum(row["accepted"] for row in seen),
        seconds=math.fsum(row["seconds"] for row in seen),
        regret=float(last["regret"]),
        best_plan_ratio=sum(row["is_best"] for row in seen) / len(seen),
        trail=trail,
    )
