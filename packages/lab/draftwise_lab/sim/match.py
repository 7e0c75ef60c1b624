"""Policies that play on texts round by round: matches of contestants, and their results as JSON."""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftwise import registry
from draftwise.controller.goodput import Goodput
from draftwise.protocols import Policy, StopRule
from draftwise.types import NONE, PLAIN, DraftwiseError, Floats, Ints, Plan, RoundFacts
from draftwise_lab.policies import DraftAll
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments import Environment
from draftwise_lab.sim.presets import Setting
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.text import Text


@dataclass(frozen=True, slots=True)
class Totals:
    """[K] rounds and seconds of every plan when it alone decodes the whole text. tokens: length of
    the text; plain_s: seconds of plain decoding."""

    rounds: Floats
    seconds: Floats
    tokens: int
    plain_s: float


def fixed_path(
    text: Text, plan: Plan, stop_rules: Mapping[str, StopRule]
) -> tuple[list[int], list[int]]:
    """Where each round of a fixed plan ends (in tokens), and its number of drafted tokens."""
    ends, drafted = list[int](), list[int]()
    position, stop_rule = 0, stop_rules.get(plan.rule)
    track = None if plan.drafter == NONE else text.tracks[plan.drafter]
    while position < text.length:
        num = accepted = 0
        if track is not None:
            most = min(plan.length, text.limit - position - 1)
            num = track.num_drafted(position, most, plan.length, stop_rule)
            accepted = track.num_accepted(position, num)
        position = min(position + accepted + 1, text.length)
        ends.append(position)
        drafted.append(num)
    return ends, drafted


def totals(
    text: Text, plans: Sequence[Plan], costs: CostTable, stop_rules: Mapping[str, StopRule]
) -> Totals:
    longest = max(plan.length for plan in plans)
    known = costs.at(text.batch_size, list(text.tracks), longest)
    rounds, seconds = np.zeros(len(plans)), np.zeros(len(plans))
    for index, plan in enumerate(plans):
        _, drafted = fixed_path(text, plan, stop_rules)
        counts = np.bincount(drafted, minlength=longest + 1)
        rounds[index] = len(drafted)
        draft_s = known.draft_s.get(plan.drafter, 0.0)
        seconds[index] = counts @ (known.target_s + draft_s * np.arange(longest + 1))
    return Totals(rounds, seconds, text.length, text.length * float(known.target_s[0]))


def best_plan(found: Sequence[Totals], *, by_seconds: bool, among: Ints | None = None) -> int:
    """The plan with the smallest total over all texts; ties go to the first. among: indices of the
    plans to consider; None = all."""
    total = np.sum([t.seconds if by_seconds else t.rounds for t in found], axis=0)
    chosen = np.arange(len(total)) if among is None else among
    return int(chosen[total[chosen].argmin()])


def best_by_drafter(plans: Sequence[Plan], costs: Floats) -> dict[str, int]:
    """Index of each drafter's cheapest plan, in ascending order of cost."""
    best: dict[str, int] = {}
    for index in np.argsort(costs, kind="stable").tolist():
        best.setdefault(plans[index].drafter, index)
    return best


def rounds_to_reach(ends: Sequence[int], position: int) -> int:
    """Number of rounds after which a path has emitted ``position`` tokens.

    >>> rounds_to_reach([3, 4, 9], 4), rounds_to_reach([3, 4, 9], 5), rounds_to_reach([3], 0)
    (2, 3, 0)
    """
    return bisect_left(ends, position) + 1 if position > 0 else 0


Row = dict[str, Any]
"""One round: seed, domain, text, policy, round, plan, plan_index, drafted, accepted, emitted,
position (tokens emitted so far), seconds (of the round), regret (rounds so far minus the best fixed
plan's rounds to the same position), is_best, and, on request, estimates [K]."""


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
    """The best fixed plans in hindsight. ends: round ends of the plan with the fewest rounds on
    this text; plan: index, among the contestant's plans, of the plan with the fewest seconds."""

    ends: Sequence[int]
    plan: int


def stop_rules_of(plans: Sequence[Plan]) -> dict[str, StopRule]:
    """The stop rules of the plans; ``fixed`` needs none. Errors: DraftwiseError for a rule that
    reads hidden states, which simulated text lacks."""
    rules = {plan.rule for plan in plans} - {"fixed"}
    stop_rules = {rule: registry.make_stop_rule(rule) for rule in sorted(rules)}
    for rule, stop_rule in stop_rules.items():
        if stop_rule.needs_hidden:
            raise DraftwiseError(f"rule {rule!r} reads hidden states, and simulated text has none")
    return stop_rules


def score_prompts(
    request: SimulatedRequest, policy: Policy, *, everyone: bool
) -> Iterator[RoundFacts]:
    """Yield prompt scores as the engine collects them: a probing policy chooses the drafters. The
    policy learns from each result before it is asked for drafters to probe."""
    asks_itself = isinstance(policy, Goodput) and not everyone
    yield request.prompt_evidence(request.retrieving if asks_itself else None)
    if asks_itself and isinstance(policy, Goodput) and (looks := policy.drafters_to_probe()):
        yield request.prompt_evidence(looks)


def play(
    text: Text, contestant: Contestant, costs: CostTable, reference: Reference,
    seed: np.random.SeedSequence, tags: Mapping[str, Any], *, with_estimates: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """Yield every round of one policy on one text; ``tags`` (seed, domain) go into every row.
    Raises DraftwiseError for an unknown policy, reward or feedback."""
    plans = contestant.plans
    policy = registry.make_policy(
        contestant.policy, len(plans), seed, plans=plans, request_tokens=text.limit
    )
    reward = registry.make_reward(contestant.reward)
    builder = registry.make_feedback(contestant.feedback, plans=plans, reward=reward)
    request = SimulatedRequest(text, plans, costs, stop_rules_of(plans))
    told_s = 0.0  # seconds reported so far; the first row includes the prompt's
    if contestant.feedback.partition(":")[0] in {"free", "panoramic"}:
        for evidence in score_prompts(request, policy, everyone=builder.panoramic):
            if isinstance(policy, Goodput):  # the others value rounds only
                policy.read(evidence)
    while not request.is_done:
        decision = policy.choose()
        position = request.position
        everyone = builder.panoramic and (request.num_rounds + 1) % builder.every == 0
        if isinstance(policy, DraftAll):
            evidence = request.play_all(plans)
        else:
            evidence = request.play(
                plans[decision.plan], scores_everyone=everyone,
                mixer=policy.mixer if isinstance(policy, Goodput) else None,
                looks=policy.drafters_to_probe() if isinstance(policy, Goodput) else (),
            )  # fmt: skip
        if isinstance(policy, Goodput):
            policy.read(evidence)
        else:
            due = builder.reveal(decision, evidence)
            for made, feedback in [*due, *(builder.flush() if request.is_done else ())]:
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
    """One run by round: position, cumulative regret, whether the best plan played, and estimates
    [R, K] if they were kept."""

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
    column = {key: [row[key] for row in seen] for key in seen[0]}
    estimates = [each for each in column["estimates"] if each is not None]
    trail = Trail(column["position"], column["regret"], column["is_best"], estimates)
    tags: Any = {key: seen[0][key] for key in ("seed", "domain", "text", "policy")}
    return Run(
        **tags,
        rounds=len(seen),
        tokens=column["position"][-1],
        drafted=sum(column["drafted"]),
        accepted=sum(column["accepted"]),
        seconds=math.fsum(column["seconds"]),
        regret=float(column["regret"][-1]),
        best_plan_ratio=sum(column["is_best"]) / len(seen),
        trail=trail if with_trail else None,
    )


_METASD = ("ucb1", "exp3", "sequential-halving", "petc", "discounted-ucb", "sliding-ucb")
_TAPOUT = ("ucb-tuned", "thompson-gaussian", "thompson-bernoulli")
_HEDGING = ("hedge", "normalhedge", "adanormalhedge")
HABITS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_METASD, ("divergence", "bandit")),
    **dict.fromkeys(_TAPOUT, ("blend", "bandit")),
    **dict.fromkeys(_HEDGING, ("expected-length", "panoramic")),
    "goodput": ("length", "free"),
}
"""Reward and feedback in each policy's paper; all other policies use ``length`` and ``bandit``."""


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parse ``"8"``, ``"2,4,8"`` or ``"0-16"`` (0 = the plan ``none``).

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
    """Drafters x lengths x rules, preceded by ``none`` if 0 is among the lengths."""
    able = product(drafters, (length for length in lengths if length > 0), rules)
    plans = tuple(Plan(*one) for one in able)
    return (PLAIN, *plans) if 0 in lengths else plans


def make_contestant(
    label: str, drafters: Sequence[str], lengths: Sequence[int], rules: Sequence[str] = ("fixed",),
    *, reward: str | None = None, feedback: str | None = None,
) -> Contestant:  # fmt: skip
    """A contestant from its label. Options missing from the label are ``reward``, ``feedback``, or
    those of the policy's paper. Errors: DraftwiseError for an unknown policy, reward, feedback or
    length."""
    head, *others = label.split("/")
    spec, _, own_lengths = head.partition("@")
    if len(others) > 2:
        raise DraftwiseError(f"{label!r}: write POLICY[@LENGTHS][/REWARD[/FEEDBACK]]")
    habit = HABITS.get(_learner(spec), ("length", "bandit"))
    chosen_reward = others[0] if others else reward or habit[0]
    chosen_feedback = others[1] if len(others) > 1 else feedback or habit[1]
    plans = make_plans(drafters, parse_lengths(own_lengths) if own_lengths else lengths, rules)
    # build everything once, so that errors are reported before the work begins
    registry.make_policy(spec, len(plans), plans=plans)
    made = registry.make_reward(chosen_reward)
    registry.make_feedback(chosen_feedback, plans=plans, reward=made)
    return Contestant(label, spec, chosen_reward, chosen_feedback, plans)


def _learner(spec: str) -> str:
    """The name of the policy that learns; for a wrapper, that of its base.

    >>> _learner("ucb1:beta=1"), _learner("delayed:base=hedge,rounds=2")
    ('ucb1', 'hedge')
    """
    name, _, options = spec.partition(":")
    bases = [part for part in options.split(",") if part.startswith("base=")]
    return bases[0].removeprefix("base=") if bases else name


Found = TypeVar("Found")
Progress = Callable[[int, int], None]
"""Called after each seed: the phase (0 = hindsight, 1 = play), and the number of seeds done."""


@dataclass(frozen=True, slots=True)
class Match:
    """Everything that determines the outcome: equal matches give byte-identical results."""

    environment: Environment
    contestants: tuple[Contestant, ...]
    plans: tuple[Plan, ...]
    tokens: int
    with_trails: bool = False

    @property
    def longest(self) -> int:
        return max(plan.length for plan in self.plans)

    def texts(self, seed: int) -> list[tuple[str, Text]]:
        return [
            (domain, text)
            for domain in self.environment.domains
            for text in self.environment.texts(domain, seed, self.tokens, self.longest)
        ]


Hindsight = dict[str, dict[tuple[int, str], Totals]]
"""By domain, then by seed and text: totals of every plan of the match."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """runs: in the order of seeds, texts, contestants; hindsight: totals of ``Match.plans``."""

    runs: list[Run]
    hindsight: Hindsight


@dataclass(frozen=True, slots=True)
class TextSums:
    """Sums over all seeds for each of P texts: domain, tokens, and seconds of plain decoding [P],
    of every plan of the match [K, P] and of every policy, by label [P]."""

    domains: NDArray[np.str_]
    tokens: Floats
    plain_s: Floats
    plans_s: Floats
    policies_s: dict[str, Floats]


def sums_by_text(outcome: Outcome) -> TextSums:
    texts: dict[tuple[str, str], list[Totals]] = {}
    for domain, found in outcome.hindsight.items():
        for (_, text), total in found.items():
            texts.setdefault((domain, text), []).append(total)
    places = {key: place for place, key in enumerate(texts)}
    policies_s: dict[str, Floats] = {}
    for run in outcome.runs:
        seconds = policies_s.setdefault(run.policy, np.zeros(len(texts)))
        seconds[places[run.domain, run.text]] += run.seconds
    return TextSums(
        np.array([domain for domain, _ in texts]),
        np.array([sum(float(total.tokens) for total in own) for own in texts.values()]),
        np.array([sum(total.plain_s for total in own) for own in texts.values()]),
        np.array([np.sum([t.seconds for t in own], axis=0) for own in texts.values()]).T,
        policies_s,
    )


def every_plan(contestants: Sequence[Contestant], plans: Sequence[Plan]) -> tuple[Plan, ...]:
    return tuple(dict.fromkeys([*plans, *(plan for c in contestants for plan in c.plans)]))


def run_match(
    match: Match, seeds: Sequence[int], jobs: int = 1, progress: Progress = lambda phase, done: None
) -> Outcome:
    """Play every contestant on every text; the outcome does not depend on ``jobs``."""
    hindsight: Hindsight = {domain: {} for domain in match.environment.domains}
    for done, found in enumerate(_map(partial(look_back, match), seeds, jobs), 1):
        for domain, more_texts in found.items():
            hindsight[domain] |= more_texts
        progress(0, done)
    best = best_plans(match, hindsight)
    runs: list[Run] = []
    for done, more in enumerate(_map(partial(play_seed, match, best), seeds, jobs), 1):
        runs += more
        progress(1, done)
    return Outcome(runs, hindsight)


def look_back(match: Match, seed: int) -> Hindsight:
    """Rounds and seconds of every plan on every text of one seed."""
    stop_rules, costs = stop_rules_of(match.plans), match.environment.costs
    found: Hindsight = {domain: {} for domain in match.environment.domains}
    for domain, text in match.texts(seed):
        found[domain][seed, text.name] = totals(text, match.plans, costs, stop_rules)
    return found


Best = dict[tuple[str, str], tuple[Plan, Plan]]
"""By domain and contestant: the contestant's plan with the fewest rounds, and the one with the
fewest seconds, over all texts and seeds."""


def best_plans(match: Match, hindsight: Hindsight) -> Best:
    """The reference plans of regret and best-plan ratio."""
    best: Best = {}
    places = {plan: index for index, plan in enumerate(match.plans)}
    for domain in match.environment.domains:
        found = list(hindsight[domain].values())
        for contestant in match.contestants:
            among = np.array([places[plan] for plan in contestant.plans])
            by_rounds, by_seconds = (
                match.plans[best_plan(found, by_seconds=what, among=among)]
                for what in (False, True)
            )
            best[domain, contestant.label] = by_rounds, by_seconds
    return best


def play_seed(match: Match, best: Best, seed: int) -> list[Run]:
    runs, stop_rules = [], stop_rules_of(match.plans)
    for domain, text in match.texts(seed):
        for contestant in match.contestants:
            by_rounds, by_seconds = best[domain, contestant.label]
            ends, _ = fixed_path(text, by_rounds, stop_rules)
            rows = play(
                text, contestant, match.environment.costs,
                Reference(ends, contestant.plans.index(by_seconds)),
                policy_seed(seed, text.name, contestant.label),
                {"seed": seed, "domain": domain}, with_estimates=match.with_trails,
            )  # fmt: skip
            runs.append(fold(rows, with_trail=match.with_trails))
    return runs


def policy_seed(seed: int, text: str, label: str) -> np.random.SeedSequence:
    """A policy's random stream, independent of texts and of other policies."""
    key = (zlib.crc32(text.encode()), zlib.crc32(label.encode()), 1)
    return np.random.SeedSequence(seed, spawn_key=key)


def _map(work: Callable[[int], Found], seeds: Sequence[int], jobs: int) -> Iterator[Found]:
    if jobs <= 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, seeds)


def make_match(
    chosen: Setting, policies: Sequence[str] | None, *, reward: str | None = None,
    feedback: str | None = None, tokens: int | None = None, lengths: str | None = None,
    num_drafters: int | None = None, with_trails: bool = False,
) -> Match:  # fmt: skip
    """A checked match from labels and options as a user types them. None = the setting's value, or
    that of the policy's paper. Errors: DraftwiseError."""
    environment = chosen.make(num_drafters)
    own = parse_lengths(lengths) if lengths else chosen.lengths
    labels = list(dict.fromkeys(policies or chosen.panel))
    contestants = tuple(
        make_contestant(
            label, environment.drafters, own, chosen.rules, reward=reward, feedback=feedback
        )
        for label in labels
    )
    plans = every_plan(contestants, make_plans(environment.drafters, own, chosen.rules))
    return Match(environment, contestants, plans, tokens or chosen.tokens, with_trails)


PLAIN_ROW, BEST_ROW, BEST_EACH_ROW = "plain", "best fixed plan", "best fixed plan of each text"
"""Rows that no policy played: results of fixed plans, known in hindsight."""

Result = dict[str, Any]
"""One domain and policy as a flat dict; the keys are documented in docs/lab/simulator.md."""


def half_width(values: Sequence[float] | Floats) -> float | None:
    """Half width of the mean's 95% interval: 1.96 standard errors; None for a single value.

    >>> round(half_width([1.0, 3.0]), 9)
    1.96
    """
    if len(values) < 2:
        return None
    return 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def results(match: Match, outcome: Outcome) -> list[Result]:
    rows: list[Result] = []
    for domain, found in outcome.hindsight.items():
        for contestant in match.contestants:
            mine = (domain, contestant.label)
            runs = [run for run in outcome.runs if (run.domain, run.policy) == mine]
            rows.append(_played(runs, [found[run.seed, run.text].plain_s for run in runs]))
        rows += _hindsight_rows(match, domain, list(found.values()))
    return rows


def _played(runs: Sequence[Run], plain: Sequence[float]) -> Result:
    regrets, drafted = [run.regret for run in runs], sum(run.drafted for run in runs)
    tokens, rounds, seconds = (
        [getattr(run, key) for run in runs] for key in ("tokens", "rounds", "seconds")
    )
    return _row((runs[0].domain, runs[0].policy), tokens, rounds, seconds, plain) | {
        "regret": float(np.mean(regrets)),
        "regret_ci95": half_width(regrets),
        "best_plan_ratio": float(np.mean([run.best_plan_ratio for run in runs])),
        "draft_acceptance_rate": sum(run.accepted for run in runs) / drafted if drafted else 0.0,
    }


def _hindsight_rows(match: Match, domain: str, found: Sequence[Totals]) -> list[Result]:
    """Rows for plain decoding, the domain's best plan and each text's best plan, by seconds."""
    index = best_plan(found, by_seconds=True)
    tokens, plain = [t.tokens for t in found], [t.plain_s for t in found]

    def row(label: str, plans: Sequence[int]) -> Result:
        pairs = list(zip(found, plans, strict=True))
        rounds, seconds = [t.rounds[i] for t, i in pairs], [t.seconds[i] for t, i in pairs]
        return _row((domain, label), tokens, rounds, seconds, plain)

    return [
        _row((domain, PLAIN_ROW), tokens, tokens, plain, plain),
        row(BEST_ROW, [index] * len(found)) | {"plan": str(match.plans[index])},
        row(BEST_EACH_ROW, [int(t.seconds.argmin()) for t in found]),
    ]


def _row(
    who: tuple[str, str], tokens: Sequence[float], rounds: Sequence[float],
    seconds: Sequence[float], plain: Sequence[float],
) -> Result:  # fmt: skip
    total_s = math.fsum(seconds)
    each_mat = np.array(tokens) / np.array(rounds)
    each_speedup = np.array(plain) / np.array(seconds)
    return {
        "domain": who[0],
        "policy": who[1],
        "num_texts": len(tokens),
        "mat": sum(tokens) / sum(rounds),
        "ci95": half_width(each_mat),
        "rounds": float(np.mean(rounds)),
        "tok_per_s": sum(tokens) / total_s,
        "speedup": math.fsum(plain) / total_s,
        "speedup_ci95": half_width(each_speedup),
        "slowest_speedup": float(each_speedup.min()),
    }


def averages(rows: Sequence[Result]) -> dict[str, Result]:
    """Averages over domains, by policy: means, and the geometric mean of speedups."""
    found: dict[str, Result] = {}
    for label in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == label]
        average: Result = {
            key: float(np.mean([row[key] for row in mine]))
            for key in ("mat", "rounds", "tok_per_s", "regret", "best_plan_ratio")
            if key in mine[0]
        }
        average["speedup"] = float(np.exp(np.mean(np.log([row["speedup"] for row in mine]))))
        average["slowest_speedup"] = min(row["slowest_speedup"] for row in mine)
        halves = [row["ci95"] for row in mine]
        average["ci95"] = None if None in halves else math.hypot(*halves) / len(mine)
        found[label] = average
    return found


def report(
    preset: str, match: Match, outcome: Outcome, *, num_drafters: int | None = None
) -> dict[str, Any]:
    """``{"preset", "results": [..], "average": {policy: {..}}, ..}``; see docs/lab/simulator.md."""
    rows = results(match, outcome)
    policies = {
        c.label: {key: getattr(c, key) for key in ("policy", "reward", "feedback")}
        | {"num_plans": len(c.plans)}
        for c in match.contestants
    }
    return {
        "preset": preset,
        "tokens": match.tokens,
        "num_drafters": num_drafters,
        "domains": list(match.environment.domains),
        "policies": policies,
        "results": rows,
        "average": averages(rows),
    }
