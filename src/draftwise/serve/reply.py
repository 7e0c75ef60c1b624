"""Answers as OpenAI's responses: whole, or chunk by chunk."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftwise.engine.paint import Painter
from draftwise.engine.request import Stats
from draftwise.serve.protocol import Delta
from draftwise.serve.speculation import own_counts, speculative_decoding

REASONS: Mapping[str, str] = {"eos": "stop", "stop": "stop", "length": "length"}
"""The engine's words for a proper end, and OpenAI's."""


class Form(Protocol):
    """What the two endpoints write differently; one object a response, its choices by index."""

    kind: str
    whole_kind: str
    chunk_kind: str
    is_empty: bool
    """Whether the prompt is all that is wanted: the token that the engine adds is not told."""

    def opening(self, index: int) -> Mapping[str, Any] | None:
        """The choice of a chunk that comes before any token, if there is one."""

    def piece(self, index: int, delta: Delta) -> Mapping[str, Any] | None:
        """The choice of a chunk; None where there is nothing to tell yet."""

    def choice(self, index: int, answer: Delta) -> Mapping[str, Any]:
        """A choice of the whole response, of which this is all."""


@dataclass(slots=True)
class Envelope:
    """What is the same in all responses. State: what its answers did so far."""

    form: Form
    model: str
    num_prompt_tokens: int
    num_spec_tokens: int
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    num_tokens: int = 0
    rounds: list[tuple[int, int]] = field(default_factory=list)
    stats: list[Stats] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = self.id or f"{self.form.kind}-{uuid.uuid4().hex}"

    def count(self, delta: Delta) -> None:
        """Take part of an answer into usage and metrics."""
        self.num_tokens += 0 if self.form.is_empty else len(delta.tokens)
        self.rounds += delta.rounds
        if delta.finish_reason is not None and delta.stats is not None:
            self.stats.append(delta.stats)

    def whole(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The response with all choices."""
        return {
            **self._head(self.form.whole_kind),
            "choices": choices,
            "usage": self.usage(),
            **self._facts(),
        }

    def chunk(self, choice: Mapping[str, Any], usage: str) -> dict[str, Any]:
        """A chunk of one choice. usage: ``no``, ``last`` (null until the last), ``each``."""
        body = {**self._head(self.form.chunk_kind), "choices": [choice]}
        if usage != "no":
            body["usage"] = self.usage() if usage == "each" else None
        return body

    def last_chunk(self) -> dict[str, Any]:
        """Usage and metrics, without a choice."""
        head = self._head(self.form.chunk_kind)
        return {**head, "choices": [], "usage": self.usage(), **self._facts()}

    def usage(self) -> dict[str, int]:
        """Tokens so far."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_tokens,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _facts(self) -> dict[str, Any]:
        metrics = speculative_decoding(self.rounds, self.num_spec_tokens)
        return {
            "metrics": {"speculative_decoding": metrics},
            "draftwise": own_counts(self.stats),
        }


class Pieces:
    """The drafter of each piece of text, for the choices of a response that asked for it."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], num: int) -> None:
        self._painters = [Painter(tokenizer, stops) for _ in range(num)]
        self._texts = [""] * num

    def of(self, index: int, delta: Delta) -> dict[str, Any]:
        """``draftwise`` of a choice: the pieces that this part adds."""
        painter = self._painters[index]
        self._texts[index] += delta.text
        pieces = painter.grow(delta, self._texts[index])
        if delta.finish_reason is not None:
            pieces += painter.finish(self._texts[index])
        return {"draftwise": {"pieces": pieces}}
