"""Records of rounds, for streams, trace files, the simulator and the report."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from draftwise.types import Floats, Plan, Scores

PHASES = ("prefill", "choose", "read", "draft", "verify", "commit", "look", "reveal", "learn")
"""The named phases of a round, in order (prefill comes once, before the first)."""
RECENT = 0.95
"""Discount of the recent speed of a request or label, per step: about the last 20 steps."""


@dataclass(slots=True)
class Account:
    """Seconds of steps, and seconds of the same tokens without drafts; both without prefill.

    ``spent_s`` is measured, ``plain_s`` is estimated by the cost model. The recent sums are
    discounted by ``RECENT`` per step.
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
    """One round of one request: what was chosen, drafted and accepted, and its cost.

    tokens, sources: the emitted tokens and the drafter of each (``target`` for the bonus token).
    seconds: by phase; all rows of a batch are charged its whole time. estimates: [K] the policy's
    values after learning. scores: new scores by drafter. plain_s, spent_s: the guard's estimate of
    the round without drafts, and the round's seconds. label: the request's.
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


class TraceWriter:
    """Writes rounds to a JSONL file. A failing disk ends the trace, never the generation.

    with_text: whether lines hold the emitted tokens. Raises OSError only if the file cannot be
    opened, before any work is done.
    """

    def __init__(self, path: str | Path, with_text: bool = True) -> None:
        self._path, self._with_text = Path(path), with_text
        self._file: TextIO | None = self._path.open("w", encoding="utf-8")

    def write(self, round_: Round) -> None:
        """Append one line; warn and stop writing after the first failure."""
        if self._file is None:
            return
        record = round_.as_json()
        if not self._with_text:
            del record["tokens"]
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # closing writes what is still buffered, which fails again
                file.close()
        warnings.warn(
            f"the trace {self._path} ends here ({error}); generation continues", stacklevel=3
        )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one position, before temperature, penalties and truncation.

    top: the requested number of likeliest tokens with their log-probabilities, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprobs(logits: Tensor, tokens: Tensor, num_top: int) -> list[Tensor]:
    """Log-probabilities of [n] tokens, before temperature, penalties and truncation, as in vLLM.

    logits: [n, V] before each token. Returns [n, 2] tokens with their log-probabilities, [n, k] the
    likeliest tokens, and [n, k] their log-probabilities.
    """
    found = logits.float().log_softmax(-1)
    own = found.gather(1, tokens.clamp(min=0)[:, None])[:, 0].double()
    best = found.topk(max(1, num_top), dim=-1)
    pairs = own.new_zeros((len(own), 2))
    pairs[:, 0], pairs[:, 1] = tokens, own
    return [pairs, best.indices[:, :num_top], best.values[:, :num_top]]


def as_logprobs(pairs: Floats, ids: Floats, values: Floats) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(int(token), value, tuple(zip(map(int, those), theirs, strict=True)))
        for (token, value), those, theirs in zip(
            pairs.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]
