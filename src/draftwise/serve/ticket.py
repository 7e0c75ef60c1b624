"""One answer on its way from the engine to its reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwise.engine.records import Round
from draftwise.serve.protocol import Ask, Delta, Row, Sink
from draftwise.types import DraftwiseError


@dataclass(slots=True)
class Ticket:
    """An answer on its way. State: the engine's row, once it has one, and what was delivered."""

    id: int
    ask: Ask
    sink: Sink
    came_s: float
    row: Row | None = None
    began_s: float | None = None
    told_s: float = 0.0
    num_chars: int = 0
    num_tokens: int = 0
    num_logprobs: int = 0
    has_prompt_logprobs: bool = False

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.ask.deadline_s is not None and now - self.came_s > self.ask.deadline_s

    def part(self, rounds: Iterable[Round]) -> Delta:
        """What is new since the last part."""
        assert self.row is not None
        answer, delta = self.row.answer, Delta()
        for round_ in rounds:
            delta.tokens += round_.tokens
            delta.sources += round_.sources
            delta.rounds.append((round_.num_drafted, round_.num_accepted))
        delta.text, self.num_chars = answer.text[self.num_chars :], len(answer.text)
        if self.row.logprobs:
            delta.logprobs = list(self.row.logprobs[self.num_logprobs :])
            self.num_logprobs += len(delta.logprobs)
        if self.ask.options.get("prompt_logprobs") and not self.has_prompt_logprobs:
            # a prompt is read whole before its first round; its first token follows nothing
            delta.prompt_logprobs = [None, *self.row.prompt_logprobs]
            self.has_prompt_logprobs = True
        if answer.finish_reason is not None:
            delta.finish_reason, delta.stats = answer.finish_reason, self.row.stats
            error = self.row.error
            if isinstance(error, DraftwiseError):  # the form that the client gave
                delta.finish_reason = "refused"
            delta.error = None if error is None else str(error)
        return delta
