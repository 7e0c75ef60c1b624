"""What a request has put out: rounds, log-probabilities, statistics, deltas, who wrote what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwise.types import Floats, Plan, Scores

TARGET = "target"  # the source of a bonus token, which the target generated
PHASES = (
    "prefill", "choose", "catch_up", "draft", "verify", "commit", "probe", "feedback", "learn",
)  # fmt: skip
"""The phases of a round, in order; prefill precedes a request's first round."""
NO_DRAFT = {
    "off": "this request is not drafted for: its preset or its options leave no drafter",
    "measure": "a plain round on purpose, which measures plain decoding",
    "guard": "drafting has lost its credit, and the drafts promised less than the guard asks for",
    "idle": "many rounds found nothing worth drafting, so this one did not search",
    "policy": "the policy chose no draft, or none of its tokens was worth its price",
    "catch-up": "the drafter chosen has not read the whole text yet",
    "drafter": "the drafter chosen proposed nothing: no match, or no token that a grammar allows",
    "end": "one token was left to the end of the answer or of the context",
}
"""Why a round drafted nothing: ``Round.no_draft`` and what it means."""
RECENT = 0.95
"""Discount of the recent speed of a request or label, per step: about the last 20 steps."""


@dataclass(slots=True)
class Account:
    """Measured seconds of steps, and estimated seconds of plain decoding for the same tokens.

    Both include prefill. The recent sums are discounted by ``RECENT`` per step.
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
    the round without drafts, and seconds booked by the guard. prompt_s: seconds of prefill since
    the last round, without and with what drafters read of it. label: of the request. no_draft: a
    key of ``NO_DRAFT`` if nothing was drafted, else "".
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
    prompt_s: tuple[float, float] = (0.0, 0.0)
    label: str = ""
    no_draft: str = ""

    def __repr__(self) -> str:
        why = f" ({self.no_draft})" if self.no_draft else ""
        return (
            f"Round({self.round} of request {self.request}: {self.plan}, drafted "
            f"{self.num_drafted}{why}, accepted {self.num_accepted}, emitted {self.num_emitted}, "
            f"{1000 * sum(self.seconds.values()):.1f} ms)"
        )

    @property
    def num_emitted(self) -> int:
        return len(self.tokens)

    def charge(self, account: Account) -> None:
        """Add this round to an account, if the cost of plain decoding is known."""
        if self.plain_s > 0:
            plain_s, spent_s = self.prompt_s
            account.add(plain_s + self.num_emitted * self.plain_s, spent_s + self.spent_s)

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
            "no_draft": self.no_draft or None,
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
    no_draft: rounds without a draft, by reason (``NO_DRAFT``).
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_emitted: int = 0
    seconds_by_phase: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    pulls: Counter[str] = field(default_factory=Counter)
    no_draft: Counter[str] = field(default_factory=Counter)
    account: Account = field(default_factory=Account)

    def add(self, round_: Round) -> None:
        self.num_rounds += 1
        self.num_drafted += round_.num_drafted
        self.num_accepted += round_.num_accepted
        self.num_emitted += round_.num_emitted
        self.pulls[round_.plan.drafter] += 1
        if round_.no_draft:
            self.no_draft[round_.no_draft] += 1
        for phase, seconds in round_.seconds.items():
            self.seconds_by_phase[phase] += seconds
        round_.charge(self.account)

    def merge(self, other: Stats, are_together: bool = False) -> None:
        """Add other statistics. Seconds are summed, or of concurrent requests the maximum kept."""
        for name in ("num_rounds", "num_drafted", "num_accepted", "num_emitted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.pulls.update(other.pulls)
        self.no_draft.update(other.no_draft)
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
        """Tokens per second relative to plain decoding, prefill included; None = unknown."""
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
    token_texts: what each token added to the text, before a stop string cut it; a character belongs
    to the token of its last byte. Empty unless the request wants them or ``logprobs``.
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
    token_texts: list[str] = field(default_factory=list)

    def add(self, later: RequestOutput) -> None:
        self.text += later.text
        for name in ("tokens", "token_texts", "sources", "rounds", "logprobs"):
            getattr(self, name).extend(getattr(later, name))
        self.prompt_logprobs = later.prompt_logprobs or self.prompt_logprobs
        self.finish_reason, self.stats, self.error = later.finish_reason, later.stats, later.error


Piece = tuple[str, str]  # a piece of text, and its drafter or ``target``


class SourceAttribution:
    """Splits the growing text of one answer into pieces of one drafter, or the target, each.

    The request needs ``token_texts``.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[int, str]] = []  # end offset and drafter of each piece
        self._num_told = self._num_shown = 0  # characters

    def grow(self, new: RequestOutput, text: str) -> list[Piece]:
        """The pieces that ``new`` adds to the answer; text: the answer so far, including them."""
        for told, source in zip(new.token_texts, new.sources, strict=True):
            self._num_told += len(told)
            if told:
                self._ends.append((self._num_told, source))
        return self.finish(text)

    def finish(self, text: str) -> list[Piece]:
        """The pieces of ``text`` that have not been returned yet."""
        pieces, end = list[Piece](), len(text)
        while self._num_shown < end:
            while self._ends and self._ends[0][0] <= self._num_shown:
                self._ends.pop(0)
            stop, source = self._ends[0] if self._ends else (end, TARGET)
            stop = min(stop, end)
            pieces.append((text[self._num_shown : stop], source))
            self._num_shown = stop
        return pieces
