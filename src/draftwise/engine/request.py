"""Requests: guarded callbacks, statistics, and the state of one round.

An exception in a callback, stop rule or policy ends its request or disables its drafts, no others.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from draftwise.bandits.feedback import DueFeedback, FeedbackBuilder
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.engine.answer import Answer
from draftwise.engine.verify import is_broken
from draftwise.errors import BadValue, DraftwiseError
from draftwise.protocols import (
    Mixer,
    Mixing,
    PlayingAll,
    Policy,
    PricingPlans,
    ProbingPolicy,
    StopRule,
)
from draftwise.types import (
    NONE,
    PLAIN,
    Decision,
    Draft,
    DraftStep,
    Evidence,
    Floats,
    Plan,
    Scores,
    Verdict,
)

T = TypeVar("T")

MIXED = "mixed"  # the rule in the plan of a draft with tokens of several drafters

TARGET = "target"  # the source of a bonus token, which the target generated


class GuardedCallback:
    """A callback that is not called again after its first exception, which ``error`` holds.

    checked: converts a result, from the result and the arguments. instead: replaces the callback.
    """

    def __init__(
        self, call: Callable[..., Any], checked: Callable[..., Any], instead: Callable[..., Any]
    ) -> None:
        self._call, self._checked, self._instead = call, checked, instead
        self.error: Exception | None = None

    def __call__(self, *args: Any) -> Any:
        if self.error is None:
            try:
                return self._checked(self._call(*args), *args)
            except Exception as error:
                self.error = error
        return self._instead(*args)

    def num_allowed(self, text: Sequence[int], num: int) -> int:
        """The number of the last ``num`` tokens that a logits processor allows; default: all."""
        num_allowed = getattr(self._call, "num_allowed", None)
        if num_allowed is not None and self.error is None:
            try:
                return max(0, min(int(num_allowed(text, num)), num))
            except Exception as error:
                self.error = error
        return num


def guarded_stop(stop_when: Callable[..., Any]) -> GuardedCallback:
    """Guard ``stop_when``: a true result or an exception ends the answer."""

    def checked(answer: Any, *_: Any) -> bool:
        try:
            return bool(answer)
        except (ValueError, TypeError, RuntimeError) as error:
            raise BadValue("what stop_when returned", answer, "True or False") from error

    return GuardedCallback(stop_when, checked, lambda *_: True)


def guarded_process(process: Callable[..., Any]) -> GuardedCallback:
    """Guard ``process``, which returns [V] logits: unchanged ones after an exception."""

    def checked(answer: Any, text: Sequence[int], logits: Tensor) -> Tensor:
        found = torch.as_tensor(answer) if isinstance(answer, np.ndarray) else answer
        if not isinstance(found, Tensor) or not found.is_floating_point():
            must = f"the {len(logits)} logits, as a tensor or array of floats"
            raise BadValue("what process returned", answer, must)
        if found.shape != logits.shape:
            raise DraftwiseError(
                f"process returned logits of the shape {list(found.shape)}, and not "
                f"{list(logits.shape)}"
            )
        return found.to(logits)

    return GuardedCallback(process, checked, lambda text, logits: logits)


class GuardedMixer:
    """A mixer that ends every draft once it, or its request's policy, has raised."""

    def __init__(self, mixer: Mixer, request: Request) -> None:
        self._mixer, self._ask = mixer, request._ask
        self.drafter, self.length = str(mixer.drafter), int(mixer.length)

    def pick(
        self,
        step: DraftStep,
        matches: Mapping[str, int],
        may_draft: bool = True,
        may_branch: bool = False,
    ) -> str | None:

        def pick() -> str | None:
            picked = self._mixer.pick(step, matches, may_draft, may_branch)
            can = may_draft if picked == self.drafter else picked is None or matches.get(picked)
            if not can:
                raise ValueError(f"the mixer picked {picked!r}, which has nothing to write")
            return picked

        return self._ask(pick, None)

    def num_siblings(self, step: DraftStep, room: int) -> int:
        return self._ask(lambda: max(0, int(self._mixer.num_siblings(step, room))), 0)

    def branch(
        self, depth: int, confidence: float, matches: Mapping[str, int], width: int, room: int
    ) -> tuple[str, int]:
        def branch() -> tuple[str, int]:
            name, num = self._mixer.branch(depth, confidence, matches, width, room)
            if num and name not in matches:
                raise ValueError(f"the mixer picked a branch of {name!r}, which has none")
            return name, min(int(num), room)

        return self._ask(branch, ("", 0))


class GuardedStopRule:
    """A stop rule that ends every draft after its first exception, with one warning.

    Tokens drawn before that stay: dropping them by value would change the output distribution.
    """

    def __init__(self, guide: StopRule, rule: str) -> None:
        self._guide, self._rule, self._is_broken = guide, rule, False
        self.needs_probs = guide.needs_probs
        self.never_stops, self.waits_for_hidden = guide.never_stops, guide.waits_for_hidden

    @property
    def needs_hidden(self) -> int:  # not copied: loading a head sets it
        return self._guide.needs_hidden

    def should_continue(self, step: DraftStep) -> bool:
        return self._ask(lambda: bool(self._guide.should_continue(step)), False)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        self._ask(lambda: self._guide.learn(num_drafted, num_accepted), None)

    def _ask(self, what: Callable[[], T], instead: T) -> T:
        if not self._is_broken:
            try:
                return what()
            except Exception as error:
                self._is_broken = True
                said = f"rule {self._rule!r} raised {error!r}: its request no longer drafts with it"
                warnings.warn(said, stacklevel=3)
        return instead


PHASES = ("prefill", "choose", "read", "draft", "verify", "commit", "look", "reveal", "learn")
"""The phases of a round, in order; prefill precedes a request's first round."""
RECENT = 0.95
"""Discount of the recent speed of a request or label, per step: about the last 20 steps."""


@dataclass(slots=True)
class Account:
    """Measured seconds of steps, and estimated seconds of plain decoding for the same tokens.

    Both exclude prefill; the recent sums are discounted by ``RECENT`` per step.
    """

    plain_s: float = 0.0
    spent_s: float = 0.0
    recent_plain_s: float = 0.0
    recent_spent_s: float = 0.0

    def add(self, plain_s: float, spent_s: float) -> None:
        self.plain_s += plain_s
        self.spent_s += spent_s
        self.recent_plain_s = RECENT * self.recent_plain_s + plain_s
        self.recent_spent_s = RECENT * self.recent_spent_s + spent_s

    def merge(self, other: Account) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def speed(self) -> float | None:
        """Tokens per second relative to plain decoding; None before the first step."""
        return self.plain_s / self.spent_s if self.spent_s > 0 else None

    @property
    def recent_speed(self) -> float | None:
        return self.recent_plain_s / self.recent_spent_s if self.recent_spent_s > 0 else None


@dataclass(frozen=True, slots=True)
class Round:
    """The record of one round of one request: its plan, draft, emitted tokens and cost.

    tokens, sources: the emitted tokens and the drafter of each (``target`` for the bonus token).
    seconds: by phase; each request of a batch is charged the whole time. estimates: [K] values of
    the policy after learning. scores: new scores by drafter. plain_s, spent_s: estimated seconds of
    the round without drafts, and seconds booked by the guard. label: of the request.
    """

    request: int
    round: int
    plan: Plan
    plan_index: int
    prob: float
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    num_drafted: int
    num_accepted: int
    position: int
    batch_size: int
    seconds: Mapping[str, float]
    estimates: Floats
    scores: Mapping[str, Scores]
    matches: Mapping[str, int]
    plain_s: float = 0.0
    spent_s: float = 0.0
    label: str = ""

    def __repr__(self) -> str:
        return (
            f"Round({self.round} of request {self.request}: {self.plan}, drafted "
            f"{self.num_drafted}, accepted {self.num_accepted}, emitted {self.num_emitted}, "
            f"{1000 * sum(self.seconds.values()):.1f} ms)"
        )

    @property
    def num_emitted(self) -> int:
        return len(self.tokens)

    def charge(self, account: Account) -> None:
        """Add this round to an account, if the cost of plain decoding is known."""
        if self.plain_s > 0:
            account.add(self.num_emitted * self.plain_s, self.spent_s)

    def as_json(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "round": self.round,
            "plan": str(self.plan),
            "drafter": self.plan.drafter,
            "length": self.plan.length,
            "rule": self.plan.rule,
            "tree": None if self.plan.tree is None else str(self.plan.tree),
            "plan_index": self.plan_index,
            "prob": self.prob,
            "position": self.position,
            "batch_size": self.batch_size,
            "tokens": list(self.tokens),
            "sources": list(self.sources),
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "num_emitted": self.num_emitted,
            "plain_s": round(self.plain_s, 9),
            "spent_s": round(self.spent_s, 9),
            "seconds": {phase: round(s, 9) for phase, s in self.seconds.items()},
            "scores": {name: _scores_as_json(s) for name, s in self.scores.items()},
            "matches": dict(self.matches),
        }


def _scores_as_json(scores: Scores) -> dict[str, Any]:
    matches = {} if scores.matches is None else {"matches": scores.matches.tolist()}
    return {
        "start": scores.start,
        "alphas": [round(a, 6) for a in scores.alphas.tolist()],
        "ratios": [round(r, 6) for r in scores.ratios.tolist()],
        **matches,
    }


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one position, before temperature, penalties and truncation.

    top: the requested number of top tokens with their log-probabilities, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Stats:
    """Counts and seconds of one request, with vLLM's names for metrics.

    seconds_by_phase: wall time; each request is charged a batch's whole. pulls: rounds by drafter.
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_emitted: int = 0
    seconds_by_phase: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    pulls: Counter[str] = field(default_factory=Counter)
    account: Account = field(default_factory=Account)

    def add(self, round_: Round) -> None:
        self.num_rounds += 1
        self.num_drafted += round_.num_drafted
        self.num_accepted += round_.num_accepted
        self.num_emitted += round_.num_emitted
        self.pulls[round_.plan.drafter] += 1
        for phase, seconds in round_.seconds.items():
            self.seconds_by_phase[phase] += seconds
        round_.charge(self.account)

    def merge(self, other: Stats, are_together: bool = False) -> None:
        """Add other statistics. Seconds are summed, or of concurrent requests the maximum kept."""
        for name in ("num_rounds", "num_drafted", "num_accepted", "num_emitted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.pulls.update(other.pulls)
        self.account.merge(other.account)
        for phase, seconds in other.seconds_by_phase.items():
            both = self.seconds_by_phase[phase], seconds
            self.seconds_by_phase[phase] = max(both) if are_together else sum(both)

    @property
    def mean_accepted_tokens(self) -> float:
        """MAT: emitted tokens per round, bonus token included."""
        return self.num_emitted / self.num_rounds if self.num_rounds else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted tokens / drafted tokens; 0 if nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def speed(self) -> float | None:
        """Tokens per second relative to plain decoding, without prefill; None = unknown."""
        return self.account.speed

    @property
    def recent_speed(self) -> float | None:
        return self.account.recent_speed

    @property
    def tok_per_s(self) -> float:
        """Emitted tokens per second, prefill included."""
        seconds = sum(self.seconds_by_phase.values())
        return self.num_emitted / seconds if seconds > 0 else 0.0


@dataclass(slots=True)
class RequestOutput:
    """New output of one request, by its id: a delta, as in vLLM.

    sources: the drafter of each token. text: new text, which is final. round: its record; None if
    the request ended outside of a round. rounds: drafted and accepted tokens of each. The first
    delta has ``prompt_logprobs``, None for the first token; the last ``finish_reason``, ``error``.
    """

    request: int = -1
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    round: Round | None = None
    rounds: list[tuple[int, int]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    finish_reason: str | None = None
    error: str | None = None

    def add(self, later: RequestOutput) -> None:
        self.text += later.text
        for name in ("tokens", "sources", "rounds", "logprobs"):
            getattr(self, name).extend(getattr(later, name))
        self.prompt_logprobs = later.prompt_logprobs or self.prompt_logprobs
        self.finish_reason, self.stats, self.error = later.finish_reason, later.stats, later.error


@dataclass(slots=True)
class Request:
    """One request: prompt, parameters, policy, text so far and statistics.

    plans: the arms of the policy. stop_rules: by drafter and spec. callbacks: all guarded ones.
    scores_prompt: whether drafters are scored on the prompt. num_logprobs: top tokens reported per
    emitted one; None = no log-probabilities. sink: receives the outputs. emitted: characters and
    tokens in the outputs so far.
    is_idle: drafting is disabled, because the policy or feedback raised. is_resting: no draft in
    this round. num_unseen: emitted tokens that the policy has not learnt from. pending: a decision
    that waits for its drafter to catch up. longest: maximum tokens per draft. probing, mixing: the
    policy, if it has the capability. is_guarded: whether the guard may suspend drafting.
    """

    id: int
    prompt: tuple[int, ...]
    context: Context
    answer: Answer
    policy: Policy
    feedback: FeedbackBuilder
    accept_rng: np.random.Generator
    plans: Sequence[Plan] = ()
    stop_rules: Mapping[tuple[str, str], StopRule] = field(default_factory=dict)
    callbacks: Sequence[GuardedCallback] = ()
    priority: int = 0
    label: str = ""
    scores_prompt: bool = False
    num_logprobs: int | None = None
    wants_prompt_logprobs: bool = False
    stats: Stats = field(default_factory=Stats)
    sources: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: Exception | None = None
    is_idle: bool = False
    is_resting: bool = False
    num_unseen: int = 0
    sink: Callable[[RequestOutput], None] | None = None
    emitted: tuple[int, int] = (0, 0)
    pending: Decision | None = None
    longest: int = field(init=False)
    probing: ProbingPolicy | None = field(init=False)
    mixing: Mixing | None = field(init=False)
    plays_all: bool = field(init=False)
    is_guarded: bool = field(init=False)

    def __post_init__(self) -> None:
        self.lead(self.policy)

    def lead(self, policy: Policy) -> None:
        self.policy = policy
        self.probing = policy if isinstance(policy, ProbingPolicy) else None
        self.mixing = policy if isinstance(policy, Mixing) else None
        self.plays_all = isinstance(policy, PlayingAll)
        self.is_guarded = isinstance(policy, PricingPlans)
        if self.plays_all:
            self.longest = sum(plan.num_tokens for plan in _one_each(self.plans))
        else:
            self.longest = max((plan.num_tokens for plan in self.plans), default=0)

    @property
    def is_over(self) -> bool:
        return self.answer.finish_reason is not None

    @property
    def num_room(self) -> int:
        """Maximum tokens of the sequence, including a draft that may be rejected."""
        return len(self.prompt) + self.answer.num_tokens + self.answer.num_left + self.longest + 1

    def check_callbacks(self) -> bool:
        """End the request with ``error`` if one of its callbacks raised; return whether one did."""
        raised = (*(callback.error for callback in self.callbacks), self.context.fault)
        first = next((error for error in raised if error is not None), None)
        if first is not None and self.error is None:
            self.fail(first)
        return first is not None

    def fail(self, error: Exception) -> None:
        self.error = error
        self.end("error")

    def end(self, reason: str) -> None:
        """End for a reason of the engine, even if the last tokens cannot be detokenized."""
        try:
            if not self.is_over:
                self.answer.finish(reason)
        except Exception as error:
            self.error = self.error or error
        if self.error is not None:
            self.answer.finish_reason = "error"

    def _ask(self, what: Callable[[], T], instead: T) -> T:
        """Call the policy or feedback; its first exception disables drafting for the request."""
        if not self.is_idle:
            try:
                return what()
            except Exception as error:
                self.is_idle, self.pending = True, None
                warnings.warn(
                    f"the policy or feedback of request {self.id} failed ({error!r}): "
                    "this request continues without drafts",
                    stacklevel=3,
                )
        return instead

    @property
    def tokens(self) -> list[int]:
        return self.context.tokens[len(self.prompt) :]

    @property
    def num_draftable(self) -> int:
        """Maximum draft length, which leaves room for a bonus token."""
        return max(0, self.answer.num_left - 1)

    @property
    def mixer(self) -> Mixer | None:
        """Chooses the drafter of each token of a mixed draft; None = one drafter per draft."""
        if (mixing := self.mixing) is None or self.is_resting:
            return None
        return self._ask(lambda: mixing.mixer and GuardedMixer(mixing.mixer, self), None)

    @property
    def reads_everything(self) -> bool:
        """Whether the feedback ever needs scores of every drafter (panoramic)."""
        return self._ask(lambda: bool(self.feedback.panoramic), False)

    @property
    def is_panoramic(self) -> bool:
        number = self.stats.num_rounds + 1
        return self.reads_everything and self._ask(lambda: number % self.feedback.every == 0, False)

    def drafters_to_probe(self, num_rows: int) -> Sequence[str]:
        """Drafters that the policy would probe in this round, within its budget."""
        if (own := self.probing) is None or self.is_over:
            return ()
        return self._ask(lambda: tuple(map(str, own.drafters_to_probe(num_rows))), ())

    def choose(self) -> Decision:
        return self._ask(lambda: self._checked(self.policy.choose()), self.plain)

    @property
    def can_rest(self) -> bool:
        """Whether a round may skip the policy, whose decision matters only if drafts pay."""
        return not self.context.is_drafted or (
            self.is_guarded and self.pending is None and not self.reads_everything
        )

    @property
    def advantage(self) -> float:
        return self._ask(lambda: float(cast(PricingPlans, self.policy).advantage), 0.0)

    def _checked(self, decision: Any) -> Decision:
        if not isinstance(decision, Decision) or not isinstance(decision.plan, Integral):
            raise TypeError(f"it chose {decision!r}, which is no Decision for a plan's index")
        if not 0 <= decision.plan < len(self.plans) or not math.isfinite(decision.prob):
            raise ValueError(f"it chose {decision!r}, of {len(self.plans)} plans")
        return decision

    @property
    def plain(self) -> Decision:
        return Decision(self.plans.index(PLAIN) if PLAIN in self.plans else 0, 1.0, 0)

    def plays(self, decision: Decision) -> list[Plan]:
        if self.is_idle or self.is_resting:
            return [PLAIN]
        return _one_each(self.plans) if self.plays_all else [self.plans[decision.plan]]

    def as_drafted(self, plan: Plan, draft: Draft) -> Plan:
        """The plan as drafted: for a mixed draft, with its main drafter and actual length."""
        if self.mixer is None or plan.tree is not None or len(draft) != len(draft.confidences):
            return plan
        writers = Counter(draft.sources[: draft.num_chain]).most_common()
        if not writers:
            return PLAIN
        return Plan(writers[0][0], draft.num_chain, "fixed" if len(writers) == 1 else MIXED)

    def task(self, plan: Plan, most: int) -> DraftTask:
        length = min(plan.length, self.num_draftable, most)
        return DraftTask(self.context, length, self.stop_rules[plan.drafter, plan.rule], plan.tree)

    def uniforms(self, num: int) -> Floats:
        """[num] uniforms of the acceptance stream; zeros for greedy requests, which need none."""
        is_greedy = self.context.sampling.temperature == 0
        return np.zeros(num) if is_greedy else self.accept_rng.random(num)

    def commit(self, draft: Draft, verdict: Verdict, targets: Sequence[int | Tensor]) -> int:
        """Append verified tokens up to the end of the answer; return their number.

        targets: the p of each token. A bonus token of -1 marks non-finite logits.
        """
        if self.check_callbacks():  # a failed callback may have changed p: emit nothing
            return 0
        tokens, before = verdict.tokens.tolist(), self.answer.num_tokens
        is_cut = is_broken(tokens[-1])
        try:
            self.answer.push(tokens[:-1] if is_cut else tokens)
        except Exception as error:  # raised by the tokenizer
            self.fail(error)
        num = self.answer.num_tokens - before
        if is_cut and not self.is_over:
            self.end("non-finite logits")
        self.context.extend(tokens[:num], targets[:num])
        path = verdict.path.tolist()
        self.sources.extend([*(draft.sources[node] for node in path), TARGET][:num])
        return num

    def learn(self, decision: Decision, evidence: Evidence) -> None:
        """Update the stop rule with the verified draft, and the policy with completed feedback."""
        if not self.context.is_drafted:
            return
        guide = self.stop_rules.get((evidence.plan.drafter, evidence.plan.rule))
        has_chain = evidence.num_drafted > 0 and evidence.plan.tree is None
        if guide is not None and has_chain and not self.plays_all:
            guide.learn(evidence.num_drafted, evidence.num_accepted)
        self._ask(lambda: self._teach(self.feedback.reveal(decision, evidence)), None)
        self.num_unseen = 0

    def finish(self) -> None:
        """Learn from queued feedback after the request has ended."""
        self._ask(lambda: self._teach(self.feedback.flush()), None)

    def _teach(self, due: DueFeedback) -> None:
        for made, feedback in due:
            self.policy.learn(made, feedback)

    def _estimates(self) -> Floats:
        found = np.asarray(self.policy.estimates(), dtype=np.float64)
        if found.shape != (len(self.plans),):
            raise ValueError(f"its estimates have the shape {found.shape}, of {len(self.plans)}")
        return found

    def record(
        self,
        state: RoundState,
        evidence: Evidence,
        seconds: Mapping[str, float],
        batch_size: int,
        charged: tuple[float, float],
    ) -> Round:
        num_emitted = state.num_emitted
        round_ = Round(
            request=self.id,
            round=self.stats.num_rounds + 1,
            plan=evidence.plan,
            plan_index=state.decision.plan,
            prob=state.decision.prob,
            tokens=tuple(self.context.tokens[evidence.emitted_start :]),
            sources=tuple(self.sources[len(self.sources) - num_emitted :]),
            num_drafted=evidence.num_drafted,
            num_accepted=min(evidence.num_accepted, num_emitted),
            position=evidence.emitted_start,
            batch_size=batch_size,
            seconds=seconds,
            estimates=self._ask(self._estimates, np.zeros(len(self.plans))),
            scores=evidence.scores,
            matches=evidence.matches,
            plain_s=charged[0],
            spent_s=charged[1],
            label=self.label,
        )
        self.stats.add(round_)
        return round_

    def output(self, round_: Round | None = None) -> RequestOutput:
        """Emit the output since the last call; round_: the record of the round that produced it."""
        answer, (num_chars, num) = self.answer, self.emitted
        self.emitted = len(answer.text), answer.num_tokens
        is_first = self.wants_prompt_logprobs and self.stats.num_rounds < 2
        output = RequestOutput(
            self.id,
            answer.text[num_chars:],
            self.context.tokens[len(self.prompt) + num :] if answer.num_tokens else [],
            self.sources[num:],
            self.logprobs[num:],
            [None, *self.prompt_logprobs] if is_first else None,
            round_,
            [] if round_ is None else [(round_.num_drafted, round_.num_accepted)],
            self.stats,
            answer.finish_reason,
            None if self.error is None else str(self.error),
        )
        if self.sink is not None:
            self.sink(output)
        return output


def _one_each(plans: Sequence[Plan]) -> list[Plan]:
    """The first plan of every drafter; plain decoding if there is none."""
    first = {plan.drafter: plan for plan in reversed(plans)}
    return [plan for name, plan in reversed(first.items()) if name != NONE] or [PLAIN]


NOTHING = Verdict(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
"""The verdict before verification."""

EMPTY = Draft.chain([], None, NONE)


@dataclass(slots=True)
class RoundState:
    """The state of one request in a round, filled in phase by phase.

    plans: plans played, several for a policy that ``plays_all``. parts: each drafter's draft, a
    branch of ``draft``. played: the first plan as drafted. logits: [N + 1, V] after the text and
    each node. hidden: by tap, [N + 1, D]. uniforms: [N + 1], the last for the bonus token. alphas,
    ratios: [N], as in ``Scores``; offpath_scores: both for each of ``offpath_probs``. targets: p of
    each token of the verdict. logprobs: by position, if requested. judged: scores by drafter from
    verification. waits: a drafter must catch up before the plan is played. scores: all new scores
    of the round.
    """

    request: Request
    decision: Decision
    plans: Sequence[Plan]
    parts: list[tuple[str, Draft]] = field(default_factory=list)
    draft: Draft = EMPTY
    played: Plan = PLAIN
    logits: Tensor | None = None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    uniforms: Floats = field(default_factory=lambda: np.zeros(1))
    verdict: Verdict = NOTHING
    alphas: Floats = field(default_factory=lambda: np.zeros(0))
    ratios: Floats = field(default_factory=lambda: np.zeros(0))
    offpath_scores: list[tuple[float, float]] = field(default_factory=list)
    targets: Sequence[int | Tensor] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    judged: Mapping[str, Scores] = field(default_factory=dict)
    num_emitted: int = 0
    waits: bool = False
    scores: dict[str, Scores] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return self.request.context

    @property
    def row(self) -> int:
        return self.request.context.row

    @property
    def fed(self) -> list[int]:
        return [self.context.tokens[-1], *self.draft.tokens.tolist()]

    @property
    def kept(self) -> list[int]:
        """Indices of the fed tokens to keep: the root, and accepted nodes that were emitted."""
        return [0, *(self.verdict.path + 1).tolist()][: self.num_emitted]
