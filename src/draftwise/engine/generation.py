"""A batch from prompts to answers: rounds as they happen, results at any time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.engine.drafting import Pool
from draftwise.engine.loop import Batch
from draftwise.engine.records import Round, TraceWriter
from draftwise.engine.request import Request, Stats


@dataclass(frozen=True, slots=True)
class Result:
    """One finished answer.

    tokens: the output ids, without the prompt. sources: who wrote each token (a drafter's name, or
    ``target``). finish_reason: ``eos``, ``stop``, ``length``, ``non-finite logits`` or
    ``interrupted``.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str
    sources: list[str]
    finish_reason: str
    stats: Stats

    def as_json(self) -> dict[str, Any]:
        """One flat object, as the command line prints it."""
        stats = self.stats
        return {
            "tokens": self.tokens,
            "text": self.text,
            "num_rounds": stats.num_rounds,
            "num_drafted": stats.num_drafted,
            "num_accepted": stats.num_accepted,
            "num_emitted": stats.num_emitted,
            "mean_accepted_tokens": stats.mean_accepted_tokens,
            "draft_acceptance_rate": stats.draft_acceptance_rate,
            "tok_per_s": stats.tok_per_s,
            "seconds_by_phase": dict(stats.seconds_by_phase),
            "pulls": dict(stats.pulls),
            "finish_reason": self.finish_reason,
            "num_prompt_tokens": len(self.prompt_tokens),
        }


class Generation:
    """Answers in the making: iterate for rounds as they happen, ask for results at any time.

    Ctrl-C or an error between two rounds loses nothing: ``results`` then has the text so far.
    """

    def __init__(self, pool: Pool, requests: Sequence[Request], trace: str | Path | None) -> None:
        self._requests = list(requests)
        self._batch = Batch(pool, requests)
        self._trace = TraceWriter(trace) if trace is not None else None

    def __iter__(self) -> Iterator[Round]:
        try:
            for round_ in self._batch.rounds():
                if self._trace is not None:
                    self._trace.write(round_)
                yield round_
        finally:
            if self._trace is not None:
                self._trace.close()

    def text(self, request: int) -> str:
        """The text of one request so far."""
        return self._requests[request].answer.text

    @property
    def num_cache_bytes(self) -> int:
        """Bytes of the target's KV storage."""
        return self._batch.num_cache_bytes

    def results(self) -> list[Result]:
        """Each request's answer, finished or not."""
        return [
            Result(
                list(r.prompt),
                r.tokens,
                r.answer.text,
                list(r.sources),
                r.answer.finish_reason or "interrupted",
                r.stats,
            )
            for r in self._requests
        ]
