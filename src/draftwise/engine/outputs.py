"""What a request puts out: the text of its answer; rounds and their trace, statistics, deltas."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from draftwise.chat import added_tokens
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
CACHED_S = 0.001
"""Seconds by which a plain step between drafts may take longer than plain decoding alone, which
finds more of the weights in the processor's cache."""


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
    def speed_range(self) -> tuple[float, float] | None:
        """Lowest and highest ``speed``, by what is known of plain decoding; None = unknown."""
        if (speed := self.speed) is None:
            return None
        doubt_s = CACHED_S * self.num_emitted if self.num_drafted else 0.0
        return max(0.0, speed - doubt_s / self.account.spent_s), speed

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


_NUMBERS = (
    "num_rounds", "num_drafted", "num_accepted", "num_emitted", "mean_accepted_tokens",
    "draft_acceptance_rate", "tok_per_s", "speed", "recent_speed",
    "speed_range",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """One finished answer.

    tokens: without the prompt. sources: their drafters, or ``target``. finish_reason: ``eos``,
    ``stop``, ``length``, ``non-finite logits``, ``cancelled``, ``error`` (a callback raised) or
    ``interrupted``. logprobs: one per token, if requested.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    sources: list[str]
    finish_reason: str
    stats: Stats
    logprobs: Sequence[TokenLogprobs] = ()

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:59] + "…"
        return (
            f"Result({text!r}, {len(self.tokens)} tokens in {self.stats.num_rounds} rounds, "
            f"MAT {self.stats.mean_accepted_tokens:.2f}, ended by {self.finish_reason})"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "text": self.text,
            **{name: getattr(self.stats, name) for name in _NUMBERS},
            "seconds_by_phase": dict(self.stats.seconds_by_phase),
            "pulls": dict(self.stats.pulls),
            "no_draft": dict(self.stats.no_draft),
            "finish_reason": self.finish_reason,
            "num_prompt_tokens": len(self.prompt_tokens),
        }


class TraceWriter:
    """Writes rounds to a JSONL file; a write error ends the trace only, with a warning.

    with_text: whether lines contain the emitted tokens.
    """

    def __init__(self, path: str | Path, with_text: bool = True) -> None:
        self._path, self._with_text = Path(path), with_text
        self._file: TextIO | None = self._path.open("w", encoding="utf-8")

    def write(self, round_: Round) -> None:
        if self._file is None:
            return
        record = round_.as_json()
        if not self._with_text:
            del record["tokens"]
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            with suppress(OSError):  # closing flushes the buffer, which fails again
                self._file.close()
            self._file = None
            self._warn(error)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._warn(error)

    def _warn(self, error: OSError) -> None:
        said = f"the trace {self._path} ends here ({error}); generation continues"
        warnings.warn(said, stacklevel=3)


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


_HELD = "�"  # a decoder's output for the bytes of an incomplete character
_MOST_TOKENS, _CONTEXT = 64, 8
"""Maximum tokens without a boundary, and context tokens kept at a forced one: a character has at
most four bytes, each of which may be a token."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Detokenizer:
    """Decodes tokens as they come, as the continuation of a prompt.

    The text, together with that of ``flush``, is what one decode of prompt and tokens adds to the
    prompt's: decoders drop the first space of a text, and an answer is not the first text. Byte
    tokens (``<0xE4>``) are decoded as UTF-8, each broken character as one U+FFFD, where a
    decoder may replace the sound characters beside it, too. Only an incomplete character at the
    end is held back.
    State: the tokens since the second-to-last boundary, at first the prompt's last ones, and the
    number of their characters that were returned. Cost: one decode of these tokens per push,
    independent of the text's length.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer, self._skips = tokenizer, skip_special_tokens
        self._tokens: list[int] = list(prompt[-_MOST_TOKENS:])
        self._num_settled = len(self._tokens)  # up to the last boundary, as context for later ones
        self._num_bytes = sum(map(self._is_byte, self._tokens)) if tokenizer else 0
        before = self._decode(self._tokens) if tokenizer and self._tokens else ""
        self._mark = before if before.endswith(_HELD) else ""  # an answer may complete it
        self._num_shown = len(before) - bool(self._mark)  # characters that were returned

    def push(self, tokens: Sequence[int]) -> str:
        """Append tokens; return the new text that no later token can change."""
        if self._tokenizer is None:
            return ""
        for token in tokens:
            self._append(token)
        text = self._read()
        is_half = text.endswith(_HELD)
        piece = text[self._num_shown : len(text) - is_half]
        if is_half:
            self._num_shown += len(piece)
            if len(self._tokens) > _MOST_TOKENS:  # only the last character is incomplete
                self._move_to(len(self._tokens) - _CONTEXT)
                self._num_shown -= 1
        elif piece:  # without text (a special token) the boundary stays
            self._move_to(self._num_settled)
        return piece

    def flush(self) -> str:
        """Return the text that was held back; it is final."""
        if self._tokenizer is None:
            return ""
        text = self._read(is_last=True)
        piece, self._num_shown = text[self._num_shown :], len(text)
        return piece

    def _append(self, token: int) -> None:
        if self._is_byte(token):
            self._num_bytes += 1
        elif self._is_skipped(token):
            return
        self._tokens.append(token)

    def _is_skipped(self, token: int) -> bool:
        """Whether this is a special token after a byte, which it does not cut from the next one."""
        if not (self._num_bytes and self._is_byte(self._tokens[-1])):
            return False
        return self._decode([*self._tokens, token]) == self._decode(self._tokens)

    def _read(self, is_last: bool = False) -> str:
        text = self._decode(self._tokens)
        if self._mark and (is_last or text != self._mark):
            # the prompt's last mark belongs to the prompt, unless the answer completed it
            self._num_shown += text.startswith(self._mark)
            self._mark = ""
        return text

    def _move_to(self, start: int) -> None:
        """Start the context at token ``start``; all text was returned."""
        self._num_settled = len(self._tokens) - start
        self._tokens = self._tokens[start:]
        self._num_bytes = sum(map(self._is_byte, self._tokens)) if self._num_bytes else 0
        self._num_shown = len(self._decode(self._tokens))

    def _is_byte(self, token: int) -> bool:
        name = getattr(self._tokenizer, "convert_ids_to_tokens", lambda _: "")(token)
        return isinstance(name, str) and bool(_BYTE.fullmatch(name)) and self._has_bytes

    @cached_property
    def _has_bytes(self) -> bool:
        """Whether the decoder takes byte tokens for bytes; the names alone do not say so."""
        ids = self._tokenizer.convert_tokens_to_ids(["<0x41>", "<0xEF>", "<0xBF>", "<0xBD>"])
        return None not in ids and self._tokenizer.decode(ids).endswith(f"A{_HELD}")

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            self._sound(tokens) if self._num_bytes else tokens,
            skip_special_tokens=self._skips,
            clean_up_tokenization_spaces=False,
        )
        return text

    def _sound(self, tokens: Sequence[int]) -> list[int]:
        """The tokens, with the bytes of U+FFFD for each broken character of a run of bytes."""
        found = list[int]()
        for are_bytes, run in groupby(tokens, self._is_byte):
            if are_bytes:
                names = self._tokenizer.convert_ids_to_tokens(list(run))
                text = bytes(int(name[3:5], 16) for name in names).decode("utf-8", "replace")
                run = self._tokenizer.convert_tokens_to_ids([f"<0x{b:02X}>" for b in text.encode()])
            found += run
        return found


@dataclass(frozen=True, slots=True)
class Ending:
    """Conditions that end an answer; fields of the same name are those of ``RequestParams``."""

    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    stop_when: Callable[[Sequence[int]], bool] | None = None
    stop_token_ids: frozenset[int] = frozenset()
    includes_stop: bool = False
    is_complete: Callable[[str], bool] | None = None
    """Whether a text has the requested form; an answer does not end before it has."""


class Answer:
    """The output of one request. Its text ends before a stop string or end token, its tokens with
    the one that completes the string. A possible start of a stop string is held back, so shown text
    is final.

    prompt: tokens that the answer continues; they are never searched for stop strings. by_token:
    whether to record ``token_texts``, the text that each token added, without regard to stop
    strings; a character belongs to the token of its last byte.
    """

    def __init__(
        self,
        ending: Ending,
        tokenizer: Any,
        prompt: Sequence[int] = (),
        *,
        by_token: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._ending = ending
        self._detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens)
        names = _named(ending.stop, tokenizer) if skip_special_tokens else {}
        # special tokens have no text; a sign is a lone surrogate, which no decoder writes
        self._signs = {token: chr(0xD800 + n) for n, token in enumerate(names)}
        self._stops = {stop: stop for stop in ending.stop} | {
            _signed(stop, {names[token]: sign for token, sign in self._signs.items()}): stop
            for stop in ending.stop
        }
        self._longest = max(map(len, self._stops), default=1)
        self._by_token = by_token or bool(ending.stop) or ending.stop_when is not None
        self._by_token |= ending.is_complete is not None and bool(ending.stop_token_ids)
        self._has_texts = by_token
        self.num_tokens = 0
        self._tokens: list[int] = []
        self.token_texts: list[str] = []
        self.text, self._waiting = "", ""
        self.finish_reason: str | None = None

    @property
    def num_left(self) -> int:
        return self._ending.max_new_tokens - self.num_tokens

    def push(self, tokens: Sequence[int]) -> int:
        before = self.num_tokens
        step = 1 if self._by_token else max(1, len(tokens))
        for start in range(0, len(tokens), step):
            self._take(tokens[start : start + step])
            if self.finish_reason:
                break
        return self.num_tokens - before

    def finish(self, reason: str) -> None:
        self.finish_reason = reason
        last = self._detokenizer.flush()
        self.text += _visible(self._waiting) + last
        self._waiting = ""
        if self.token_texts:
            self.token_texts[-1] += last

    def _take(self, tokens: Sequence[int]) -> None:
        taken = list(tokens[: self.num_left])
        end = next((i for i, token in enumerate(taken) if self._ends_at(token)), None)
        taken = taken if end is None else taken[: end + 1]
        self.num_tokens += len(taken)
        self._tokens.extend(taken)
        is_told = end is None or self._ending.includes_stop
        self._tell(taken if is_told else taken[:-1])
        if self.finish_reason is not None:
            return
        if end is not None:
            self.finish("eos" if taken[-1] in self._ending.eos else "stop")
        elif self.num_left == 0:
            self.finish("length")
        elif self._ending.stop_when is not None and self._ending.stop_when(self._tokens):
            self.finish("stop")

    def _ends_at(self, token: int) -> bool:
        own = self._ending
        if token in own.eos:
            return True
        if token not in own.stop_token_ids:
            return False
        return own.is_complete is None or own.is_complete(self.text + _visible(self._waiting))

    def _tell(self, tokens: Sequence[int]) -> None:
        """Append the text of these tokens."""
        sign = self._signs.get(tokens[0], "") if self._signs and tokens else ""
        # what a stop string names ends a character that is still incomplete
        piece = self._detokenizer.flush() if sign else self._detokenizer.push(tokens)
        if self._has_texts:
            self.token_texts.append(piece)
        self._show(piece + sign)

    def _show(self, piece: str) -> None:
        """Append text, except a possible start of a stop string; end before a complete one."""
        text = self._waiting + piece
        if (found := self._stop_in(text)) is not None:
            place, stop = found
            shown = _visible(text[:place]) + (stop if self._ending.includes_stop else "")
            self.text, self._waiting = self.text + shown, ""
            self.finish_reason = "stop"
            return
        cut = max(0, len(text) - self._longest + 1)
        while cut < len(text) and not any(stop.startswith(text[cut:]) for stop in self._stops):
            cut += 1
        self.text, self._waiting = self.text + _visible(text[:cut]), text[cut:]

    def _stop_in(self, text: str) -> tuple[int, str] | None:
        """The place of the first stop string that ends in new text, and the string as given."""
        places = [
            (place, given)
            for stop, given in self._stops.items()
            if (place := text.find(stop, max(0, len(self._waiting) - len(stop) + 1))) >= 0
        ]
        is_complete = self._ending.is_complete or (lambda _: True)
        fitting = (
            one for one in sorted(places) if is_complete(self.text + _visible(text[: one[0]]))
        )
        return next(fitting, None)


def _named(stops: Sequence[str], tokenizer: Any) -> dict[int, str]:
    """The special tokens whose names stand in a stop string."""
    if not stops or tokenizer is None:
        return {}
    texts, special = added_tokens(tokenizer)
    found = {i: texts[i] for i in sorted(special) if texts[i]}
    return {i: name for i, name in found.items() if any(name in stop for stop in stops)}


def _signed(stop: str, signs: Mapping[str, str]) -> str:
    """A stop string with signs for the names of special tokens, longer names first."""
    for name in sorted(signs, key=len, reverse=True):
        stop = stop.replace(name, signs[name])
    return stop


def _visible(text: str) -> str:
    """The text without signs."""
    return text if text.isascii() else "".join(c for c in text if not "\ud800" <= c <= "\udfff")
