"""Converts request bodies to engine requests, and parses tool calls in a model's text.

Two forms of calls are supported: ``<tool_call>{...}</tool_call>`` (Hermes, Qwen, SmolLM) and bare
JSON, one object or a list (Llama 3, and the output under ``tool_choice``), with arguments under
``arguments`` or ``parameters``.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

from draftwise import registry
from draftwise.chat import Prompt, check_size, encode, render
from draftwise.registry import preset
from draftwise.serve import schemas
from draftwise.serve.constraint import Grammars, grammar_of, json_grammar
from draftwise.serve.settings import ServerSettings
from draftwise.serve.worker import GenerationRequest
from draftwise.types import DraftwiseError, SamplingParams

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""For base models: the concatenated messages are the text to continue."""
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
"""Bytes by the characters that stand for them in byte-level vocabularies (GPT-2's table)."""


def calls_schema(tools: Sequence[schemas.Tool], choice: Any) -> dict[str, Any]:
    """The JSON schema of a call that ``tool_choice`` forces: of one tool, or of any."""
    if isinstance(choice, schemas.NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


class ToolText:
    """Separates content from tool calls in a growing answer; holds back a possible call's start."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)
        self._text, self._num_shown = "", 0

    def push(self, piece: str) -> str:
        """Add a piece of text; return the content that is certain not to be a call."""
        self._text += piece
        return self._show(self._certain())

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest of the content, and the calls; an invalid call is content."""
        at = self._certain()
        calls = read_calls(self._text[at:], self._names)
        return self._show(at if calls else len(self._text)), calls

    def _certain(self) -> int:
        text = self._text
        if text.lstrip()[:1] in ("{", "[", ""):
            return 0
        if (at := text.find(_OPEN)) >= 0:
            return at
        held = (n for n in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:n]))
        return len(text) - next(held, 0)

    def _show(self, end: int) -> str:
        shown, self._num_shown = self._text[self._num_shown : end], max(end, self._num_shown)
        return shown


def read_calls(text: str, names: set[str]) -> list[dict[str, Any]]:
    """The calls in a text that consists of calls, as OpenAI writes them; empty if it does not.

    >>> read_calls('{"name": "add", "arguments": {"a": 1}}', {"add"})[0]["function"]
    {'name': 'add', 'arguments': '{"a": 1}'}
    """
    bodies = [part.split(_CLOSE)[0] for part in text.split(_OPEN)[1:]] or [text]
    calls: list[dict[str, Any]] = []
    try:
        for body in bodies:
            found = json.loads(body)
            for call in found if isinstance(found, list) else [found]:
                name = call.get("name") if isinstance(call, dict) else None
                if not isinstance(name, str) or name not in names:
                    return []
                given = call.get("arguments", call.get("parameters", {}))
                text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
                function = {"name": name, "arguments": text}
                id_ = f"call_{uuid.uuid4().hex[:24]}"
                calls.append({"id": id_, "type": "function", "function": function})
    except (ValueError, RecursionError):  # a model may write endless brackets
        return []
    return calls


class Codec:
    """One model's tokenizer, as requests use it. chat_template: replaces the tokenizer's own."""

    def __init__(
        self, tokenizer: Any, vocab_size: int, max_positions: int, chat_template: str | None = None
    ) -> None:
        if tokenizer is None:
            raise DraftwiseError("a server needs a tokenizer: the target has none")
        self.tokenizer, self._vocab_size, self.max_positions = tokenizer, vocab_size, max_positions
        self.has_template = chat_template is not None or tokenizer.chat_template is not None
        if not self.has_template:
            chat_template = PLAIN_TEMPLATE
        if chat_template is not None:
            tokenizer.chat_template = chat_template
            try:  # failing on the simplest message is the operator's error
                render([{"role": "user", "content": "Hello"}], tokenizer)
            except DraftwiseError as error:
                raise DraftwiseError(f"--chat-template: {error}") from None
        self.takes_tools = "tools" in str(tokenizer.chat_template)
        self.text_of = lru_cache(maxsize=65_536)(self._text_of)
        self.bytes_of = lru_cache(maxsize=65_536)(self._bytes_of)

    def chat(
        self, messages: Sequence[schemas.Message], tools: Sequence[schemas.Tool] | None
    ) -> Prompt:
        """A conversation as the prompt of the next turn. Errors: DraftwiseError."""
        turns = [_turn(message) for message in messages]
        check_size(turns, self.tokenizer, self.max_positions)
        if tools and not self.takes_tools:
            raise DraftwiseError(
                "tools: this model's chat template has no place for them; serve a model whose "
                "template has, or give one with --chat-template"
            )
        listed = [tool.model_dump(exclude_none=True) for tool in tools or ()]
        options = {"tools": listed} if listed else {}
        return self._checked(render(turns, self.tokenizer, **options))

    def prompts(self, given: Sequence[str | list[int]]) -> list[Prompt]:
        """The prompts of a completion, each as text or ids. Errors: DraftwiseError."""
        found = []
        for one in given:
            if one == "":
                raise DraftwiseError("prompt: it is empty: there is nothing to continue")
            if isinstance(one, str):
                check_size(one, self.tokenizer, self.max_positions)
            prompt = encode(one, self.tokenizer) if isinstance(one, str) else Prompt(one)
            found.append(self._checked(prompt))
        return found

    def tokens(self, body: schemas.TokenizeRequest) -> list[int]:
        """The token ids for ``/tokenize``. Errors: DraftwiseError."""
        if body.messages is not None:
            return list(self.chat(body.messages, None).tokens)
        text = body.prompt or ""
        check_size(text, self.tokenizer, self.max_positions)
        encoded = self.tokenizer(text, add_special_tokens=body.add_special_tokens)
        return list(encoded["input_ids"])

    def text(self, body: schemas.DetokenizeRequest) -> str:
        """The text for ``/detokenize``. Errors: DraftwiseError for an id not in the vocabulary."""
        if (largest := max(body.tokens, default=0)) >= (size := self._vocab_size):
            raise DraftwiseError(f"tokens: {largest} is outside the vocabulary of {size}")
        return str(self.tokenizer.decode(body.tokens, skip_special_tokens=False))

    def logit_bias(self, given: Mapping[str, float] | None) -> dict[int, float]:
        """``logit_bias`` by token id. Errors: DraftwiseError for an invalid id."""
        bias = {}
        for key, value in (given or {}).items():
            token = int(key[:12]) if key.isascii() and key.isdigit() else self._vocab_size
            if token >= self._vocab_size or key != str(token):  # "01" would duplicate "1"
                raise DraftwiseError(
                    f"logit_bias: {key[:32]!r} is no token id; write a whole number from 0 to "
                    f"{self._vocab_size - 1}, without leading zeros"
                )
            bias[token] = value
        return bias

    def _checked(self, prompt: Prompt) -> Prompt:
        tokens = prompt.tokens
        if not tokens:
            raise DraftwiseError("the prompt has no tokens: there is nothing to continue")
        if (largest := max(tokens)) >= (size := self._vocab_size):
            why = f"the prompt has the token {largest}, outside the vocabulary of {size}"
            raise DraftwiseError(why)
        return prompt

    def _text_of(self, token: int) -> str:
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode([token], **options))

    def _bytes_of(self, token: int) -> bytes:
        """The token's bytes, which may be part of a character, for byte-level vocabularies."""
        text = self._text_of(token)
        if "\ufffd" not in text:
            return text.encode()
        piece = str(self.tokenizer.convert_ids_to_tokens(token))
        if piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:-1], 16)])
        if all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        return text.encode()


def _turn(message: schemas.Message) -> dict[str, Any]:
    """A message as templates expect it: without empty fields, arguments of calls as objects."""
    turn = message.model_dump(exclude_none=True)
    for call in turn.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except ValueError:
            continue  # models write arguments as text, and templates print text unchanged
        except RecursionError:
            why = "messages: the arguments of a call are nested too deeply"
            raise DraftwiseError(why) from None
    return turn


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Creates a ``GenerationRequest`` for each answer. eos: the model's end tokens."""

    codec: Codec
    grammars: Grammars
    eos: frozenset[int]
    limits: ServerSettings

    def chat(self, body: schemas.ChatRequest) -> list[GenerationRequest]:
        """The requests of a chat. Errors: DraftwiseError, ValueError."""
        tools = None if body.tool_choice == "none" else body.tools
        self._check_num(body.n)
        prompt = self.codec.chat(body.messages, tools)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        grammar = grammar_of(body.response_format, body.structured_outputs)
        if isinstance(body.tool_choice, schemas.NamedTool) or body.tool_choice == "required":
            if grammar is not None:
                raise DraftwiseError("tool_choice already says which form the answer has")
            grammar = json_grammar(calls_schema(body.tools or (), body.tool_choice))
        budget = body.max_completion_tokens or body.max_tokens
        return self._requests(body, [prompt], grammar, budget, logprobs)

    def completion(self, body: schemas.CompletionRequest) -> list[GenerationRequest]:
        """The requests of a completion. Errors: DraftwiseError, ValueError (out of range)."""
        self._check_num(body.n * len(body.prompts))
        prompts = self.codec.prompts(body.prompts)
        grammar = grammar_of(body.response_format, body.structured_outputs)
        budget = 16 if body.max_tokens is None else max(1, body.max_tokens)  # as in OpenAI's API
        prompt_logprobs = body.echo and body.logprobs is not None
        return self._requests(body, prompts, grammar, budget, body.logprobs, prompt_logprobs)

    def _check_num(self, num: int) -> None:
        """Refuse more answers than the server can ever hold: clients would retry a 429 forever."""
        if num > (most := self.limits.max_open):
            raise DraftwiseError(f"n: {num} answers are too many, at most {most} fit in here")

    def _requests(
        self, body: schemas.BaseRequest, prompts: Sequence[Prompt], grammar: str | None,
        budget: int | None, logprobs: int | None, prompt_logprobs: bool = False,
    ) -> list[GenerationRequest]:  # fmt: skip
        own, requests = body.draftwise, []
        if own.preset is not None:
            preset(own.preset)  # refuses an unknown one
        if own.policy is not None:
            registry.check_remote_spec("policy", own.policy)
        options = own.model_dump(exclude={"plans", "deadline_s", "pieces"}) | {
            "lengths": own.plans, "tenant": own.tenant or body.user, "stop": body.stops,
            "logprobs": logprobs, "prompt_logprobs": prompt_logprobs,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        deadlines = (own.deadline_s, self.limits.deadline_s)
        deadline_s = min((s for s in deadlines if s is not None), default=None)
        prompts = [prompt for prompt in prompts for _ in range(body.n)]
        held: Iterator[Any] = itertools.repeat(None)
        if grammar is not None:
            held = self.grammars.constraints(grammar, [len(prompt.tokens) for prompt in prompts])
        for index, prompt in enumerate(prompts):
            ends = {*(body.stop_token_ids or ())}
            if not body.ignore_eos:
                ends |= self.eos | prompt.turn_ends
            each = {
                "max_new_tokens": self._room(prompt, budget),
                "sampling": self._sampling(body, next(held)),
                "eos_token_ids": sorted(ends),
                "seed": seed_of(body.seed, index),
            }
            requests.append(GenerationRequest(prompt.tokens, given | each, deadline_s))
        return requests

    def _room(self, prompt: Prompt, budget: int | None) -> int:
        num, limits, positions = len(prompt.tokens), self.limits, self.codec.max_positions
        most = min(positions - 1, limits.max_prompt_tokens or positions)
        if num > most:
            raise DraftwiseError(f"the prompt has {num} tokens, and at most {most} are taken")
        room, most_new = positions - num, limits.max_new_tokens or positions
        if budget is None:
            return min(room, most_new)
        if budget > room:
            raise DraftwiseError(
                f"max_tokens: {budget} is too many: {num} prompt tokens leave room for {room} of "
                f"the model's {positions} positions"
            )
        if budget > most_new:
            raise DraftwiseError(f"max_tokens: {budget} is above this server's limit of {most_new}")
        return budget

    def _sampling(self, body: schemas.BaseRequest, process: Any) -> SamplingParams:
        names = [one.name for one in fields(SamplingParams) if hasattr(body, one.name)]
        given: dict[str, Any] = {name: getattr(body, name) for name in names}
        given |= {"top_k": max(0, body.top_k), "logit_bias": self.codec.logit_bias(body.logit_bias)}
        return SamplingParams(**given, process=process)


def seed_of(seed: int | None, sample: int) -> int | None:
    """The seed of a sample: the request's own for the first, derived seeds for the others."""
    if seed is None:
        return None
    seed %= 2**64
    if sample == 0:
        return seed
    return int(np.random.SeedSequence([seed, sample]).generate_state(1, np.uint64)[0])
