"""Converts request bodies to engine requests."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

from draftwise.chat import (
    Prompt,
    added_tokens,
    check_size,
    check_unicode,
    encode,
    has_template,
    render,
)
from draftwise.engine.outputs import Detokenizer
from draftwise.errors import shown
from draftwise.registry import POLICIES, preset
from draftwise.serve import schemas
from draftwise.serve.calls import CallTags, calls_schema, free_grammar
from draftwise.serve.constraint import Grammars, MinTokens, grammar_of, json_grammar
from draftwise.serve.settings import ServerSettings
from draftwise.serve.worker import GenerationRequest
from draftwise.types import DraftwiseError, SamplingParams

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""For base models: the concatenated messages are the text to continue."""
_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
"""Bytes by the characters that stand for them in byte-level vocabularies (GPT-2's table)."""


class Codec:
    """One model's tokenizer, as requests use it. chat_template: replaces the tokenizer's own."""

    def __init__(
        self, tokenizer: Any, vocab_size: int, max_positions: int, chat_template: str | None = None
    ) -> None:
        if tokenizer is None:
            raise DraftwiseError("a server needs a tokenizer: the target has none")
        self.tokenizer, self._vocab_size, self.max_positions = tokenizer, vocab_size, max_positions
        own = getattr(tokenizer, "chat_template", None)
        formats_itself = own is None and has_template(tokenizer)
        self.has_template = chat_template is not None or has_template(tokenizer)
        if formats_itself and chat_template is not None:
            raise DraftwiseError(
                f"--chat-template: {type(tokenizer).__name__} formats chats in code of its own"
            )
        if not self.has_template:
            chat_template = PLAIN_TEMPLATE
        if chat_template is not None:
            tokenizer.chat_template = chat_template
            try:  # failing on the simplest message is the operator's error
                render([{"role": "user", "content": "Hello"}], tokenizer)
            except DraftwiseError as error:
                raise DraftwiseError(f"--chat-template: {error}") from None
        self.takes_tools = formats_itself or "tools" in str(tokenizer.chat_template)
        self.call_tags = CallTags.of(tokenizer)
        self.text_of = lru_cache(maxsize=65_536)(self._text_of)

    def chat(
        self, messages: Sequence[schemas.Message], tools: Sequence[schemas.Tool],
        options: Mapping[str, Any], end: Mapping[str, bool],
    ) -> Prompt:  # fmt: skip
        """A conversation as the prompt of the next turn.

        options: variables of the template. end: how the prompt ends, as arguments of
        ``apply_chat_template``. Errors: DraftwiseError.
        """
        turns = [_turn(message) for message in messages]
        check_size(turns, self.tokenizer, self.max_positions)
        if tools and not self.takes_tools:
            raise DraftwiseError(
                "tools: this model's chat template has no place for them; serve a model whose "
                "template has, or give one with --chat-template"
            )
        if reserved := sorted(options.keys() & self._reserved):
            raise DraftwiseError(f"chat_template_kwargs: {reserved[0]!r} is the server's to say")
        listed = [tool.model_dump(exclude_none=True) for tool in tools]
        given = {**options, **_given(tools=listed), **end}
        return self._checked(render(turns, self.tokenizer, after_answer=True, **given))

    @cached_property
    def _reserved(self) -> Collection[str]:
        """Template variables that clients may not set: arguments of the call that renders."""
        own = inspect.signature(self.tokenizer.apply_chat_template).parameters
        return {*own, "messages", "after_answer", *self.tokenizer.special_tokens_map}

    def prompts(self, given: Sequence[str | list[int]], add_special: bool = True) -> list[Prompt]:
        """The prompts of a completion, each as text or ids. Errors: DraftwiseError.

        add_special: whether a text begins with the tokens that the tokenizer puts there.
        """
        found = []
        for one in given:
            if one == "":
                raise DraftwiseError("prompt: it is empty: there is nothing to continue")
            if isinstance(one, str):
                check_size(one, self.tokenizer, self.max_positions)
                prompt = encode(one, self.tokenizer) if add_special else self._bare(one)
            else:
                prompt = Prompt(one)
            found.append(self._checked(prompt))
        return found

    def _bare(self, text: str) -> Prompt:
        check_unicode("the prompt", text)
        return Prompt(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def tokens(self, body: schemas.TokenizeRequest) -> list[int]:
        """The token ids for ``/tokenize``. Errors: DraftwiseError."""
        if body.messages is not None:
            options, tools = body.chat_template_kwargs, body.tools or ()
            return list(self.chat(body.messages, tools, options, body.end).tokens)
        text = body.prompt or ""
        check_size(text, self.tokenizer, self.max_positions)
        encoded = self.tokenizer(text, add_special_tokens=body.add_special_tokens)
        return list(encoded["input_ids"])

    def text(self, body: schemas.DetokenizeRequest) -> str:
        """The text for ``/detokenize``. Errors: DraftwiseError for an id not in the vocabulary."""
        if (largest := max(body.tokens, default=0)) >= (size := self._vocab_size):
            raise DraftwiseError(f"tokens: {largest} is outside the vocabulary of {size}")
        return self.decode(body.tokens)

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

    def prediction(self, text: str) -> tuple[int, ...]:
        """The token ids of a predicted answer, as many as there are positions."""
        check_size(text, self.tokenizer, self.max_positions)
        check_unicode("prediction", text)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tuple(ids[: self.max_positions])

    def _checked(self, prompt: Prompt) -> Prompt:
        tokens = prompt.tokens
        if not tokens:
            raise DraftwiseError("the prompt has no tokens: there is nothing to continue")
        if (largest := max(tokens)) >= (size := self._vocab_size):
            why = f"the prompt has the token {largest}, outside the vocabulary of {size}"
            raise DraftwiseError(why)
        return prompt

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of all tokens, special ones included."""
        return "".join(self.token_texts(tokens))

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """What each token adds to the text of those before, special ones included."""
        detokenizer = Detokenizer(self.tokenizer, skip_special_tokens=False)
        texts = [detokenizer.push([token]) for token in tokens]
        return [*texts[:-1], *(text + detokenizer.flush() for text in texts[-1:])]

    @cached_property
    def _inside(self) -> list[int]:
        """A letter: as the first of a text, a token would lose its space."""
        return list(self.tokenizer("a", add_special_tokens=False)["input_ids"][-1:])

    def _text_of(self, token: int) -> str:
        """The token's text inside a text."""
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        before = self.tokenizer.decode(self._inside, **options)
        text = str(self.tokenizer.decode([*self._inside, token], **options))
        if text.startswith(before):
            return text[len(before) :]
        return str(self.tokenizer.decode([token], **options))

    def name_of(self, token: int, text: str) -> str:
        """How log-probabilities name a token that added ``text``, which is empty for two kinds.

        A part of a character has no name but its bytes; a token that has no text has its own.
        """
        own = self.text_of(token)
        return text if text or "\ufffd" in own else own

    def bytes_of(self, token: int, name: str) -> bytes:
        """The bytes of a token with this name; they may be a part of a character."""
        text = self.text_of(token)
        if "\ufffd" not in text:
            return name.encode()
        piece = str(self.tokenizer.convert_ids_to_tokens(token))
        if piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:-1], 16)])
        if all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        return text.encode()


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}


def _turn(message: schemas.Message) -> dict[str, Any]:
    """A message as templates expect it: without empty fields, arguments of calls as objects."""
    turn = message.model_dump(exclude_none=True, exclude={"refusal", "reasoning", "function_call"})
    turn["role"] = "tool" if message.role == "function" else message.role
    turn["content"] = _text(message)
    if message.reasoning is not None:
        turn.setdefault("reasoning_content", message.reasoning)
    calls = list(turn.get("tool_calls", ()))
    if message.function_call is not None:  # the old form of one call
        called = message.function_call.model_dump(exclude_none=True)
        calls.append({"id": message.function_call.name, "type": "function", "function": called})
    for call in calls:
        call["function"]["arguments"] = _arguments(call["function"]["arguments"])
    return turn | _given(tool_calls=calls)


def _text(message: schemas.Message) -> str | None:
    """The text of a message; None where the client gave none and has to."""
    content = message.content
    if isinstance(content, list):
        return schemas.text_of(content)
    may_be_empty = message.role in ("assistant", "tool", "function")
    return content or message.refusal or ("" if may_be_empty else content)


def _arguments(given: str | dict[str, Any]) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given or "{}")
    except ValueError:
        return given  # models write arguments as text, and templates print text unchanged
    except RecursionError:
        raise DraftwiseError("messages: the arguments of a call are nested too deeply") from None


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Creates a ``GenerationRequest`` for each answer. eos: the model's end tokens."""

    codec: Codec
    grammars: Grammars
    eos: frozenset[int]
    limits: ServerSettings
    defaults: SamplingParams = field(default_factory=partial(SamplingParams, temperature=1.0))

    def chat(self, body: schemas.ChatRequest) -> list[GenerationRequest]:
        """The requests of a chat. Errors: DraftwiseError, ValueError."""
        self._check_num(body.n)
        prompt = self.codec.chat(body.messages, body.offered, body.template_options, body.end)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        grammar, predicted = self._chat_grammar(body), body.prediction
        requests = self._requests(body, [prompt], grammar, body.budget, logprobs)
        if predicted is None:
            return requests
        own = {"prediction": self.codec.prediction(predicted.text)}
        return [replace(one, options={**one.options, **own}) for one in requests]

    def _chat_grammar(self, body: schemas.ChatRequest) -> str | None:
        form, most = body.form, None if body.parallel_tool_calls else 1
        if body.forced:
            if form is not None:
                raise DraftwiseError("tool_choice already says which form the answer has")
            return json_grammar(calls_schema(body.forced))
        if body.offered and (form is None or form.schema_of_answer is not None):
            return free_grammar(body.offered, form, self.codec.call_tags, most)
        return None if form is None else grammar_of(form)

    def completion(self, body: schemas.CompletionRequest) -> list[GenerationRequest]:
        """The requests of a completion. Errors: DraftwiseError, ValueError (out of range)."""
        self._check_num(body.n * len(body.prompts))
        prompts = self.codec.prompts(body.prompts, body.add_special_tokens)
        budget = 16 if body.budget is None else body.budget or 1  # as in OpenAI's API
        prompt_logprobs = body.echo and body.logprobs is not None
        grammar = None if (form := body.form) is None else grammar_of(form)
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
        if own.policy is not None and own.policy not in POLICIES:  # options may name files
            raise DraftwiseError(
                f"policy: {shown(own.policy)} is not served; a request names one of "
                f"{', '.join(POLICIES)}, without options"
            )
        options = own.model_dump(exclude={"plans", "deadline_s", "pieces"}) | {
            "lengths": own.plans, "tenant": body.tenant, "stop": body.stops,
            "logprobs": logprobs, "prompt_logprobs": prompt_logprobs, "token_texts": own.pieces,
            "include_stop_str_in_output": body.include_stop_str_in_output,
            "skip_special_tokens": body.skip_special_tokens,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not None}
        deadlines = (own.deadline_s, self.limits.deadline_s)
        deadline_s = min((s for s in deadlines if s is not None), default=None)
        prompts = [prompt for prompt in prompts for _ in range(body.n)]
        held: Iterator[Any] = itertools.repeat(None)
        stops, own_ends = frozenset(body.stop_token_ids or ()), frozenset[int]()
        if grammar is not None:
            # control tokens end a form where it is complete; other stop tokens may be in its text
            own_ends = stops & added_tokens(self.codec.tokenizer).texts.keys()
            ends = own_ends.union(*(prompt.turn_ends for prompt in prompts))
            nums = [len(prompt.tokens) for prompt in prompts]
            held = self.grammars.constraints(grammar, nums, ends, body.ignore_eos)
        for index, prompt in enumerate(prompts):
            ends = own_ends
            if not body.ignore_eos or grammar is not None:  # a form ends where it says
                ends = ends | self.eos | prompt.turn_ends
            process = next(held)
            if body.min_tokens and (ends or stops):
                process = MinTokens(len(prompt.tokens), body.min_tokens, sorted(ends | stops))
            each = {
                "max_new_tokens": self._room(prompt, budget),
                "sampling": self._sampling(body, process),
                "eos_token_ids": sorted(ends),
                "stop_token_ids": sorted(stops - ends),
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
        if budget is None or budget == -1:
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
        given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
        if given.get("temperature", 1) < schemas.GREEDY_BELOW:
            given["temperature"] = 0
        if given.get("top_p") == 0:  # the likeliest token alone, as in transformers
            given["top_p"] = 1e-9
        given["logit_bias"] = self.codec.logit_bias(body.logit_bias)
        return replace(self.defaults, **given, process=process)


def seed_of(seed: int | None, sample: int) -> int | None:
    """The seed of a sample: the request's own for the first, derived seeds for the others."""
    if seed is None or seed == -1:  # -1 is how llama.cpp and vLLM write none
        return None
    seed %= 2**64
    if sample == 0:
        return seed
    return int(np.random.SeedSequence([seed, sample]).generate_state(1, np.uint64)[0])
