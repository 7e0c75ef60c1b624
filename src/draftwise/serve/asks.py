"""From a body that was read to the answers that the engine is asked for, one an ask."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwise.chat import Prompt
from draftwise.serve.codec import Codec
from draftwise.serve.constraint import Grammars, grammar_of, json_grammar
from draftwise.serve.protocol import Ask
from draftwise.serve.tools import calls_schema
from draftwise.serve.wire import ChatRequest, Common, CompletionRequest, NamedTool
from draftwise.types import DraftwiseError, SamplingParams

_DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat may go on to the last position."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for. max_prompt_tokens, max_new_tokens: None = the model's own.

    max_answers: of one request, its prompts times ``n``; None = as many as it likes.
    """

    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    deadline_s: float | None = None
    max_answers: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request as the engine takes it: ``n`` asks a prompt, prompt by prompt."""

    prompts: Sequence[Prompt]
    asks: Sequence[Ask]
    n: int

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counted once, however many answers it gets."""
        return sum(len(prompt.tokens) for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class Asker:
    """Makes asks. eos: the tokens that end the model's answers by themselves."""

    codec: Codec
    eos: frozenset[int]
    limits: Limits = field(default_factory=Limits)
    allowed: Callable[[str, str], None] = lambda kind, name: None
    """Raises DraftwiseError for a preset or policy that requests may not name."""

    def chat(self, body: ChatRequest, grammars: Grammars) -> Wanted:
        """Raises DraftwiseError or ValueError, as ``completion``."""
        tools = None if body.tool_choice == "none" else body.tools
        self._check_num(body.n)
        prompt = self.codec.chat(body.messages, tools)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        grammar = grammar_of(body.response_format, body.structured_outputs)
        if isinstance(body.tool_choice, NamedTool) or body.tool_choice == "required":
            if grammar is not None:
                raise DraftwiseError("tool_choice already says which form the answer has")
            grammar = json_grammar(calls_schema(body.tools or (), body.tool_choice))
        budget = body.max_completion_tokens or body.max_tokens
        return self._wanted(body, [prompt], grammars, grammar, logprobs, budget, {})

    def completion(self, body: CompletionRequest, grammars: Grammars) -> Wanted:
        """Raises DraftwiseError for what this model or server cannot do; ValueError."""
        self._check_num(body.n * len(body.prompts))
        prompts = self.codec.prompts(body.prompts)
        grammar = grammar_of(body.response_format, body.structured_outputs)
        budget = _DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
        more = {"prompt_logprobs": True} if body.echo and body.logprobs is not None else {}
        return self._wanted(body, prompts, grammars, grammar, body.logprobs, budget, more)

    def _check_num(self, num: int) -> None:
        """More than can ever be on their way would be told to come again for ever."""
        most = self.limits.max_answers
        if most is not None and num > most:
            raise DraftwiseError(f"n: {num} answers are asked for, and at most {most} fit in here")

    def _wanted(
        self,
        body: Common,
        prompts: Sequence[Prompt],
        grammars: Grammars,
        grammar: str | None,
        logprobs: int | None,
        budget: int | None,
        more: dict[str, Any],
    ) -> Wanted:
        own, asks = body.draftwise, []
        for kind, name in (("preset", own.preset), ("policy", own.policy)):
            if name is not None:
                self.allowed(kind, name)
        options: dict[str, Any] = {
            **_given(preset=own.preset, policy=own.policy, lengths=own.plans, label=own.label),
            **_given(private=own.private, priority=own.priority, tenant=own.tenant or body.user),
            **_given(stop=body.stops),
            **more,
        }
        if logprobs is not None:
            options["logprobs"] = logprobs
        deadlines = [s for s in (own.deadline_s, self.limits.deadline_s) if s is not None]
        held: Iterator[Any] = itertools.repeat(None)
        if grammar is not None:
            nums = [len(prompt.tokens) for prompt in prompts for _ in range(body.n)]
            held = grammars.constraints(grammar, nums)
        for index, prompt in enumerate(prompts):
            room = self._room(prompt, budget)
            own_ends = frozenset() if body.ignore_eos else self.eos | prompt.turn_ends
            ends = own_ends | frozenset(body.stop_token_ids or ())
            for sample in range(body.n):
                each = {
                    "max_new_tokens": room,
                    "sampling": self._sampling(body, next(held)),
                    "eos_token_ids": sorted(ends),
                    "seed": seed_of(body.seed, index * body.n + sample),
                }
                asks.append(Ask(prompt.tokens, options | each, min(deadlines, default=None)))
        return Wanted(prompts, asks, body.n)

    def _room(self, prompt: Prompt, budget: int | None) -> int:
        """Tokens that the answer may have."""
        num, limits = len(prompt.tokens), self.limits
        most = self.codec.max_positions - 1
        if limits.max_prompt_tokens is not None:
            most = min(most, limits.max_prompt_tokens)
        if num > most:
            raise DraftwiseError(f"the prompt has {num} tokens, and at most {most} are taken")
        room = self.codec.max_positions - num
        if budget is not None and budget > room:
            raise DraftwiseError(
                f"max_tokens: {num} prompt tokens leave room for {room} of the model's "
                f"{self.codec.max_positions} positions, and {budget} were asked for"
            )
        most_new = limits.max_new_tokens
        if budget is not None and most_new is not None and budget > most_new:
            raise DraftwiseError(f"max_tokens: {budget} is above this server's limit of {most_new}")
        return min(b for b in (room, budget, most_new) if b is not None)

    def _sampling(self, body: Common, process: Any) -> SamplingParams:
        return SamplingParams(
            temperature=body.temperature,
            top_k=max(0, body.top_k),
            top_p=body.top_p,
            repetition_penalty=body.repetition_penalty,
            **_given(
                min_p=body.min_p,
                presence_penalty=body.presence_penalty,
                frequency_penalty=body.frequency_penalty,
                logit_bias=self.codec.logit_bias(body.logit_bias),
                process=process,
            ),
        )


def seed_of(seed: int | None, sample: int) -> int | None:
    """The seed of one sample: the first has the request's own, the others what follows from it."""
    if seed is None:
        return None
    seed %= 2**64
    if sample == 0:
        return seed
    return int(np.random.SeedSequence([seed, sample]).generate_state(1, np.uint64)[0])


def _given(**options: Any) -> dict[str, Any]:
    """Options that say something: what was left out is left to the engine."""
    return {name: value for name, value in options.items() if value}
