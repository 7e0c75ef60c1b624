"""A request: its tokens, limits and counts, and the state of one of its rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from draftwise.drafters.protocol import Context, DraftTask
from draftwise.engine.deciders import Decider, GuardedCallback
from draftwise.engine.outputs import TARGET, Answer, RequestOutput, Round, Stats, TokenLogprobs
from draftwise.engine.verify import is_broken
from draftwise.protocols import Mixer
from draftwise.types import NONE, PLAIN, Decision, Draft, Floats, Plan, RoundFacts, Scores, Verdict

MIXED = "mixed"  # the rule in the plan of a draft with tokens of several drafters


@dataclass(slots=True)
class Logprobs:
    """The log-probabilities that a request wants, and those found so far."""

    num_top: int | None = None  # top tokens of each emitted token; None = none are wanted
    wants_prompt: bool = False
    answer: list[TokenLogprobs] = field(default_factory=list)  # one per emitted token
    prompt: list[TokenLogprobs] = field(default_factory=list)  # from the second token on


@dataclass(slots=True)
class Outbox:
    """Where a request's output goes, and how much of it went out."""

    sink: Callable[[RequestOutput], None] | None = None
    num_chars: int = 0
    num_tokens: int = 0
    sources: list[str] = field(default_factory=list)  # the drafter of each emitted token


@dataclass(slots=True)
class Request:
    """One request. What it plays is up to its ``decider``."""

    id: int
    context: Context  # the text so far, as drafters see it
    answer: Answer  # tokens and text after the prompt, and their limits
    decider: Decider
    accept_rng: np.random.Generator
    callbacks: Sequence[GuardedCallback] = ()  # all guarded ones
    priority: int = 0
    label: str = ""
    logprobs: Logprobs = field(default_factory=Logprobs)
    stats: Stats = field(default_factory=Stats)
    outbox: Outbox = field(default_factory=Outbox)
    error: Exception | None = None

    @property
    def num_prompt(self) -> int:
        """The number of the prompt's tokens."""
        return len(self.context.tokens) - self.answer.num_tokens

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.context.tokens[: self.num_prompt])

    @property
    def is_over(self) -> bool:
        return self.answer.finish_reason is not None

    @property
    def num_room(self) -> int:
        """Maximum tokens of the sequence, including a draft that may be rejected."""
        return len(self.context.tokens) + self.answer.num_left + self.decider.longest + 1

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

    @property
    def tokens(self) -> list[int]:
        return self.context.tokens[self.num_prompt :]

    @property
    def num_draftable(self) -> int:
        """Maximum draft length, which leaves room for a bonus token."""
        return max(0, self.answer.num_left - 1)

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
        self.outbox.sources.extend([*(draft.sources[node] for node in path), TARGET][:num])
        return num

    def record(
        self,
        state: RoundState,
        evidence: RoundFacts,
        seconds: Mapping[str, float],
        batch_size: int,
        charged: tuple[float, float],
        prompt_s: tuple[float, float],
    ) -> Round:
        num_emitted, sources = state.num_emitted, self.outbox.sources
        round_ = Round(
            request=self.id,
            round=self.stats.num_rounds + 1,
            plan=evidence.plan,
            plan_index=state.decision.plan,
            prob=state.decision.prob,
            tokens=tuple(self.context.tokens[evidence.emitted_start :]),
            sources=tuple(sources[len(sources) - num_emitted :]),
            num_drafted=evidence.num_drafted,
            num_accepted=min(evidence.num_accepted, num_emitted),
            position=evidence.emitted_start,
            batch_size=batch_size,
            seconds=seconds,
            estimates=self.decider.estimates(),
            scores=evidence.scores,
            matches=evidence.matches,
            plain_s=charged[0],
            spent_s=charged[1],
            prompt_s=prompt_s,
            label=self.label,
            no_draft=state.no_draft,
        )
        self.stats.add(round_)
        return round_

    def output(self, round_: Round | None = None) -> RequestOutput:
        """Emit the output since the last call; round_: the record of the round that produced it."""
        answer, box, logprobs = self.answer, self.outbox, self.logprobs
        is_first = logprobs.wants_prompt and self.stats.num_rounds < 2
        output = RequestOutput(
            self.id,
            answer.text[box.num_chars :],
            self.tokens[box.num_tokens :],
            box.sources[box.num_tokens :],
            logprobs.answer[box.num_tokens :],
            [None, *logprobs.prompt] if is_first else None,
            round_,
            [] if round_ is None else [(round_.num_drafted, round_.num_accepted)],
            self.stats,
            answer.finish_reason,
            None if self.error is None else str(self.error),
            answer.token_texts[box.num_tokens :],
        )
        box.num_chars, box.num_tokens = len(answer.text), answer.num_tokens
        if box.sink is not None:
            box.sink(output)
        return output


NOTHING = Verdict(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
"""The verdict before verification."""

EMPTY = Draft.chain([], None, NONE)


@dataclass(slots=True)
class RoundState:
    """The state of one request in a round, filled in phase by phase.

    plan: the plan to play. rests: no draft in this round, whatever the decider would choose.
    no_draft: why, as in ``Round``; of a round that may draft, only once it is verified.
    drafter: the one that wrote ``draft``; "" = none, or one whose draft is no evidence. played: the
    plan as drafted. logits: [N + 1, V] after the text and each node. hidden: by tap, [N + 1, D].
    uniforms: [N + 1], the last for the bonus token. alphas, ratios: [N], as in ``Scores``;
    offpath_scores: both for each of ``offpath_probs``. targets: p of each token of the verdict.
    logprobs: by position, if requested. judged: scores by drafter from verification. waits: a
    drafter must catch up before the plan is played. scores: all new scores of the round.
    """

    request: Request
    decision: Decision
    plan: Plan
    rests: bool = False
    draft: Draft = EMPTY
    drafter: str = ""
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
    no_draft: str = ""
    scores: dict[str, Scores] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return self.request.context

    @property
    def row(self) -> int:
        return self.request.context.row

    @property
    def mixer(self) -> Mixer | None:
        """Chooses the drafter of each token of a mixed draft; None = one drafter per draft."""
        return None if self.rests else self.request.decider.mixer

    def task(self, most: int) -> DraftTask:
        request, plan = self.request, self.plan
        length = min(plan.length, request.num_draftable, most)
        rule = request.decider.stop_rules[plan.drafter, plan.rule]
        return DraftTask(request.context, length, rule, plan.tree)

    def as_drafted(self, plan: Plan) -> Plan:
        """The plan as drafted: for a mixed draft, with its main drafter and actual length."""
        draft = self.draft
        if self.mixer is None or plan.tree is not None or len(draft) != len(draft.confidences):
            return plan
        writers = Counter(draft.sources[: draft.num_chain]).most_common()
        if not writers:
            return PLAIN
        return Plan(writers[0][0], draft.num_chain, "fixed" if len(writers) == 1 else MIXED)

    @property
    def fed(self) -> list[int]:
        return [self.context.tokens[-1], *self.draft.tokens.tolist()]

    @property
    def kept(self) -> list[int]:
        """Indices of the fed tokens to keep: the root, and accepted nodes that were emitted."""
        return [0, *(self.verdict.path + 1).tolist()][: self.num_emitted]
