"""One policy on one text, round by round; fixed plans in hindsight; labels of contestants."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwise import registry
from draftwise.protocols import Mixing, PlayingAll, Policy, PricingPlans, ProbingPolicy, StopRule
from draftwise.types import NONE, PLAIN, Decision, DraftwiseError, Evidence, Floats, Ints, Plan
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.text import Text


@dataclass(frozen=True, slots=True)
class Totals:
    """[K] rounds and seconds of every plan, played alone from the text's start to its end.

    tokens: of the text; plain_s: seconds of decoding it plainly.
    """

    rounds: Floats
    seconds: Floats
    tokens: int
    plain_s: float


def fixed_path(
    text: Text, plan: Plan, guides: Mapping[str, StopRule]
) -> tuple[list[int], list[int]]:
    """Where each round of a fixed plan ends (in tokens), and how many tokens it drafted."""
    ends: list[int] = []
    drafted: list[int] = []
    position, guide = 0, guides.get(plan.rule)
    track = None if plan.drafter == NONE else text.tracks[plan.drafter]
    while position < text.length:
        num = accepted = 0
        if track is not None:
            most = min(plan.length, text.limit - position - 1)
            num = track.num_drafted(position, most, plan.length, guide)
            accepted = track.num_accepted(position, num)
        position = min(position + accepted + 1, text.length)
        ends.append(position)
        drafted.append(num)
    return ends, drafted


def totals(
    text: Text, plans: Sequence[Plan], costs: CostTable, guides: Mapping[str, StopRule]
) -> Totals:
    longest = max(plan.length for plan in plans)
    known = costs.at(text.batch_size, list(text.tracks), longest)
    rounds, seconds = np.zeros(len(plans)), np.zeros(len(plans))
    for index, plan in enumerate(plans):
        _, drafted = fixed_path(text, plan, guides)
        counts = np.bincount(drafted, minlength=longest + 1)
        rounds[index] = len(drafted)
        draft_s = known.draft_s.get(plan.drafter, 0.0)
        seconds[index] = counts @ (known.target_s + draft_s * np.arange(longest + 1))
    plain_s = text.length * float(known.target_s[0])
    return Totals(rounds, seconds, text.length, plain_s)


def best_plan(found: Sequence[Totals], *, by_seconds: bool, among: Ints | None = None) -> int:
    """The plan with the smallest total over all texts; ties go to the first.

    among: indices of the plans to consider; None = all.
    """
    total = np.sum([t.seconds if by_seconds else t.rounds for t in found], axis=0)
    chosen = np.arange(len(total)) if among is None else among
    return int(chosen[total[chosen].argmin()])


def rounds_to_reach(ends: Sequence[int], position: int) -> int:
    """Rounds after which a path has emitted ``position`` tokens.

    >>> rounds_to_reach([3, 4, 9], 4), rounds_to_reach([3, 4, 9], 5), rounds_to_reach([3], 0)
    (2, 3, 0)
    """
    return bisect_left(ends, position) + 1 if position > 0 else 0


Row = dict[str, Any]
"""One round: seed, domain, text, policy, round, plan, plan_index, drafted, accepted, emitted,
position (tokens emitted so far), seconds (of the round), regret (rounds so far, less those that
the best fixed plan takes to the same position), is_best, and, on request, estimates [K]."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy with its plans, reward and feedback; ``label`` is its name in tables."""

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
    """The stop rules of the plans; ``fixed`` needs none.

    Errors: DraftwiseError for a rule that reads hidden states: simulated text has none.
    """
    rules = {plan.rule for plan in plans} - {"fixed"}
    guides = {rule: registry.make_guide(rule) for rule in sorted(rules)}
    for rule, guide in guides.items():
        if guide.needs_hidden:
            raise DraftwiseError(f"rule {rule!r} reads hidden states, and simulated text has none")
    return guides


def score_prompts(
    request: SimulatedRequest, policy: Policy, *, everyone: bool
) -> Iterator[Evidence]:
    """Prompt scores, as the engine collects them: a policy that probes chooses the drafters.

    The policy learns each score before it is asked for the next drafter.
    """
    asks_itself = isinstance(policy, ProbingPolicy) and not everyone
    yield request.prompt_evidence(request.retrieving if asks_itself else None)
    if asks_itself and isinstance(policy, ProbingPolicy) and (looks := policy.drafters_to_probe()):
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
    if not isinstance(policy, PricingPlans):  # otherwise the evidence contains everything
        reward = registry.make_reward(contestant.reward)
    revealer = registry.make_feedback(contestant.feedback, plans=plans, reward=reward)
    request = SimulatedRequest(text, plans, costs, guides_of(plans))
    told_s = 0.0  # seconds reported so far; the first row includes the prompt's
    if contestant.feedback.partition(":")[0] in {"free", "panoramic"}:
        for evidence in score_prompts(request, policy, everyone=revealer.panoramic):
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
                looks=policy.drafters_to_probe() if isinstance(policy, ProbingPolicy) else (),
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
    """The course of one run, by round.

    Position, cumulative regret, whether the best plan played, and estimates [R, K] if they were
    kept.
    """

    positions: list[int]
    regrets: list[int]
    is_best: list[bool]
    estimates: list[list[float]]


@dataclass(frozen=True, slots=True)
class Run:
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


_HEDGING = ("expected-length", "panoramic")
_METASD = ("divergence", "bandit")
_TAPOUT = ("blend", "bandit")
_DEFAULT = ("length", "bandit")

HABITS: dict[str, tuple[str, str]] = {
    "ucb1": _METASD,
    "exp3": _METASD,
    "sequential-halving": _METASD,
    "petc": _METASD,
    "discounted-ucb": _METASD,
    "sliding-ucb": _METASD,
    "ucb-tuned": _TAPOUT,
    "thompson-gaussian": _TAPOUT,
    "thompson-bernoulli": _TAPOUT,
    "hedge": _HEDGING,
    "normalhedge": _HEDGING,
    "adanormalhedge": _HEDGING,
    "goodput": ("length", "free"),
}
"""Reward and feedback of each policy's own paper; every other policy has ``length``, ``bandit``."""


def parse_lengths(text: str) -> tuple[int, ...]:
    """``"8"``, ``"2,4,8"`` or ``"0-16"`` (0 = the plan ``none``) as numbers.

    >>> parse_lengths("0-3,8")
    (0, 1, 2, 3, 8)
    """
    lengths: list[int] = []
    try:
        for part in text.split(","):
            low, dash, high = part.partition("-")
            lengths.extend(range(int(low), int(high if dash else low) + 1))
    except ValueError as error:
        raise DraftwiseError(f"lengths {text!r}: write 8, 2,4,8 or 0-16 (0 = none)") from error
    if not lengths or min(lengths) < 0:
        raise DraftwiseError(f"lengths {text!r} name no length: write 8, 2,4,8 or 0-16")
    return tuple(dict.fromkeys(lengths))


def make_plans(
    drafters: Sequence[str], lengths: Sequence[int], rules: Sequence[str] = ("fixed",)
) -> tuple[Plan, ...]:
    """Drafters x lengths x rules, with ``none`` first if 0 is among the lengths."""
    plans = [
        Plan(drafter, length, rule)
        for drafter in drafters
        for length in lengths
        if length > 0
        for rule in rules
    ]
    return tuple([PLAIN, *plans] if 0 in lengths else plans)


def make_contestant(
    label: str, drafters: Sequence[str], lengths: Sequence[int], rules: Sequence[str] = ("fixed",),
    *, reward: str | None = None, feedback: str | None = None,
) -> Contestant:  # fmt: skip
    """A contestant from its label.

    Options that the label leaves open are ``reward``, ``feedback``, or those of the policy's own
    paper. Errors: DraftwiseError for an unknown policy, reward, feedback or length.
    """
    head, *others = label.split("/")
    spec, _, own_lengths = head.partition("@")
    if len(others) > 2:
        raise DraftwiseError(f"{label!r}: write POLICY[@LENGTHS][/REWARD[/FEEDBACK]]")
    habit = HABITS.get(_learner(spec), _DEFAULT)
    chosen_reward = others[0] if others else reward or habit[0]
    chosen_feedback = others[1] if len(others) > 1 else feedback or habit[1]
    plans = make_plans(drafters, parse_lengths(own_lengths) if own_lengths else lengths, rules)
    _try(spec, chosen_reward, chosen_feedback, plans)
    return Contestant(label, spec, chosen_reward, chosen_feedback, plans)


def _learner(spec: str) -> str:
    """The name of the policy that learns: the base of a wrapper.

    >>> _learner("ucb1:beta=1"), _learner("delayed:base=hedge,rounds=2")
    ('ucb1', 'hedge')
    """
    name, _, options = spec.partition(":")
    bases = [part for part in options.split(",") if part.startswith("base=")]
    return bases[0].removeprefix("base=") if bases else name


def _try(policy: str, reward: str, feedback: str, plans: Sequence[Plan]) -> None:
    """Build everything once, so that errors are reported before the work begins."""
    registry.make_policy(policy, len(plans), plans=plans)
    made = registry.make_reward(reward)
    registry.make_feedback(feedback, plans=plans, reward=made)
