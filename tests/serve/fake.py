"""An engine without a model: each answer repeats its prompt, a few tokens per round."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from draftwise.controller.guard import Guard
from draftwise.engine.outputs import Answer, Ending, RequestOutput, Round, Stats
from draftwise.types import PLAIN, Costs, DraftwiseError, Plan
from engine.scripted import VOCAB, byte_tokenizer

_IDS = itertools.count(1)
PLANS = [PLAIN, Plan("parrot", 2)]


def expected(prompt: Sequence[int], num: int) -> list[int]:
    """The answer of a fake engine."""
    return [prompt[i % len(prompt)] for i in range(num)]


class FakeLogprob:
    """Log-probabilities of a token and one alternative of probability 0."""

    def __init__(self, token: int) -> None:
        self.token, self.logprob = token, -0.5
        self.top = [(token, -0.5), ((token + 1) % VOCAB, float("-inf"))]


class FakeRow:
    """A request of a ``FakeEngine``; made by ``Fake.request``."""

    def __init__(self, prompt: Sequence[int], tokenizer: Any, **options: Any) -> None:
        self.id, self.prompt, self.options = next(_IDS), tuple(prompt), options
        eos = frozenset(options.get("eos_token_ids") or ())
        stop = tuple(options.get("stop", ()))
        ends = frozenset(options.get("stop_token_ids", ()))
        self.answer = Answer(
            Ending(
                options.get("max_new_tokens", 16), eos, stop, None, ends,
                options.get("include_stop_str_in_output", False),
            ),
            tokenizer, prompt,
            by_token="logprobs" in options or options.get("token_texts", False),
        )  # fmt: skip
        self.stats, self.error = Stats(), None
        self.tokens: list[int] = []
        self.logprobs: list[FakeLogprob] = []
        self.prompt_logprobs: list[FakeLogprob] = []
        self.wants_prompt_logprobs = bool(options.get("prompt_logprobs"))
        if options.get("prompt_logprobs"):
            self.prompt_logprobs = list(map(FakeLogprob, self.prompt[1:]))

    def grow(self, num: int) -> RequestOutput:
        """Run one round of ``num`` tokens, all drafted but the last."""
        start, num_chars = len(self.tokens), len(self.answer.text)
        wanted = expected(self.prompt, start + num)[start:]
        kept = wanted[: self.answer.push(wanted)]
        self.tokens += kept
        if "logprobs" in self.options:
            self.logprobs += map(FakeLogprob, kept)
        sources = ["parrot"] * (num - 1) + ["target"]
        round_ = Round(
            request=self.id, round=1, plan=PLANS[1] if num > 1 else PLAIN, plan_index=0, prob=1.0,
            tokens=tuple(kept), sources=tuple(sources[: len(kept)]), num_drafted=num - 1,
            num_accepted=min(num - 1, len(kept)), position=start, batch_size=1,
            seconds={"draft": 0.001, "verify": 0.002}, estimates=np.array([1.0, 2.0]),
            scores={}, matches={}, plain_s=0.0025, spent_s=0.003,
            label=self.options.get("label", ""),
        )  # fmt: skip
        self.stats.add(round_)
        return RequestOutput(
            self.id, self.answer.text[num_chars:], kept, list(round_.sources),
            self.logprobs[start:],
            [None, *self.prompt_logprobs] if self.wants_prompt_logprobs and not start else None,
            round_, [(round_.num_drafted, round_.num_accepted)], self.stats,
            self.answer.finish_reason, None, self.answer.token_texts[start:],
        )  # fmt: skip

    def output(self) -> RequestOutput:
        """Return an empty output: between two rounds nothing is new."""
        return RequestOutput(self.id, stats=self.stats)


class FakeEngine:
    """Rows of up to ``max_rows`` grow by 1, 2, 3, 1, ... tokens a step.

    pace_s: seconds of a step. fails: called before each step with its number; may raise.
    """

    def __init__(
        self,
        max_rows: int = 4,
        pace_s: float = 0.0,
        fails: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.max_rows, self.pace_s, self.fails = max_rows, pace_s, fails
        self.waiting: list[FakeRow] = []
        self.running: list[FakeRow] = []
        self.num_steps = self.most_rows = 0
        self.num_cache_bytes = self.num_prefix_hits = 0
        self.is_closed = False
        self.guard, self.drafting_allowed = Guard(), True

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def costs(self) -> Costs:
        return Costs(np.array([0.01, 0.012]), {"parrot": 0.001})

    def admit(self, request: FakeRow) -> None:
        if len(request.prompt) > 1000:
            raise DraftwiseError("it needs 1001 bytes of keys and values, and max_bytes is 1000")
        self.waiting.append(request)

    def step(self) -> list[RequestOutput]:
        self.num_steps += 1
        if self.pace_s:
            time.sleep(self.pace_s)
        while self.waiting and len(self.running) < self.max_rows:
            self.running.append(self.waiting.pop(0))
        self.most_rows = max(self.most_rows, len(self.running))
        try:
            self.fails(self.num_steps)
        except Exception:
            for row in self.running:
                row.answer.finish("interrupted")
            self.running = []
            raise
        outputs = [row.grow(self.num_steps % 3 + 1) for row in self.running]
        if outputs:
            self.guard.observe(
                sum(map(len, (r.tokens for r in outputs))) / len(outputs), 0.003, 0.0025
            )
        self.running = [row for row in self.running if row.answer.finish_reason is None]
        return outputs

    def cancel(self, id: int) -> None:
        found = [row for row in [*self.waiting, *self.running] if row.id == id]
        if not found:
            raise DraftwiseError(f"no request {id}")
        found[0].answer.finish("cancelled")
        self.waiting = [row for row in self.waiting if row.id != id]
        self.running = [row for row in self.running if row.id != id]

    def close(self) -> None:
        self.is_closed = True


class Fake:
    """A tokenizer, an engine and a factory of its requests."""

    def __init__(self, tokenizer: Any = None, **engine: Any) -> None:
        self.tokenizer = byte_tokenizer() if tokenizer is None else tokenizer
        self.engine = FakeEngine(**engine)
        self.rows: list[FakeRow] = []

    def request(self, prompt: Sequence[int], **options: Any) -> FakeRow:
        if options.get("preset") == "broken":
            raise RuntimeError("a bug")
        self.rows.append(FakeRow(prompt, self.tokenizer, **options))
        return self.rows[-1]
