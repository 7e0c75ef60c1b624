"""What the server needs of an engine, and what a handler is told of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftwise.engine.records import Round
from draftwise.engine.request import Stats
from draftwise.types import Costs


class Logprob(Protocol):
    """The log-probability of a token of the text, and the likeliest ones at its place."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]]


class Answering(Protocol):
    """The text of a row so far, and why it ended, if it did."""

    text: str
    finish_reason: str | None


class Row(Protocol):
    """An engine's request, as far as the server reads it.

    prompt_logprobs: from the prompt's second token on, where they were asked for.
    """

    id: int
    error: Exception | None

    @property
    def answer(self) -> Answering: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def logprobs(self) -> Sequence[Logprob]: ...
    @property
    def prompt_logprobs(self) -> Sequence[Logprob]: ...


class Engine(Protocol):
    """Rows that join and leave at any time; one thread owns it."""

    @property
    def has_work(self) -> bool: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_cache_bytes(self) -> int: ...
    @property
    def num_prefix_hits(self) -> int: ...
    @property
    def costs(self) -> Costs | None: ...
    def admit(self, request: Any) -> None: ...
    def step(self) -> Sequence[Round]: ...
    def cancel(self, id: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One answer that is wanted: token ids and the options of ``Speculator.request``."""

    prompt: Sequence[int]
    options: Mapping[str, Any]
    deadline_s: float | None = None


@dataclass(slots=True)
class Delta:
    """What an answer grew by since its reader last looked; parts add up.

    sources: each token's writer. rounds: tokens drafted and accepted, a round. logprobs: one a
    token where they were asked for. prompt_logprobs: once, with the first part. finish_reason:
    with the last part only, and with it ``stats`` and ``error``.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: Sequence[Logprob | None] | None = None
    finish_reason: str | None = None
    stats: Stats | None = None
    error: str | None = None

    def add(self, later: Delta) -> None:
        """Take what came after this."""
        self.text += later.text
        self.tokens += later.tokens
        self.sources += later.sources
        self.rounds += later.rounds
        self.logprobs += later.logprobs
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        self.finish_reason, self.stats, self.error = later.finish_reason, later.stats, later.error


class Sink(Protocol):
    """Where the parts of an answer go; called in the engine's thread, must not wait."""

    def put(self, delta: Delta) -> None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """What one answer was, for the books. waited_s: until its first token."""

    finish_reason: str
    num_prompt_tokens: int
    num_tokens: int
    waited_s: float
    took_s: float


class Observer(Protocol):
    """Hears of all that happens, in the engine's thread."""

    def saw_rounds(self, rounds: Sequence[Round], engine: Engine) -> None: ...
    def saw_part(self, num_tokens: int, gap_s: float, is_first: bool) -> None: ...
    def saw_end(self, ended: Ended) -> None: ...
