"""Request schemas: OpenAI's fields, vLLM's where they mean the same, and draftwise's own.

Every field of a schema is honoured. Any other field is refused by name, unless it cannot change
an answer (``IGNORED``) or its value has no effect (``null``, or a value in ``NEUTRAL``), since some
clients always send such fields. Every list and object has a maximum size, and validation stops at
its first invalid item: a body of 8 MB would otherwise take minutes to refuse
(``tests/serve/test_hostile.py`` checks every field).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from draftwise.types import LONGEST_PLAN

MAX_KEYS = 64  # of an object; draftwise's own schemas have less than half as many fields
MAX_TOKEN_IDS, MAX_PROMPTS = 2**20, 1024
MAX_BIASES = 1024
MAX_PLANS = 128
MAX_GRAMMAR_CHARS = 100_000
MAX_TOP_LOGPROBS = 20

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "length_penalty": (1, 1.0),
    **dict.fromkeys(("use_beam_search", "early_stopping", "include_stop_str_in_output"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    **dict.fromkeys(("add_special_tokens", "parallel_tool_calls"), (True,)),
    **dict.fromkeys(("suffix", "user"), ("",)),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none",),
}
"""Unsupported fields, with the values at which they have no effect."""

IGNORED = frozenset(
    {"metadata", "store", "reasoning_effort", "verbosity", "service_tier", "safety_identifier"}
    | {"prompt_cache_key", "prompt_cache_retention"}
)
"""Accepted and unused: fields about OpenAI's own service, and hints that any answer satisfies."""

Text = Annotated[str, Field(max_length=10_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)]
Length = Annotated[int, Field(ge=1, le=128)]
Plans = Annotated[list[Length], Field(min_length=1, max_length=MAX_PLANS, fail_fast=True)]
Drafters = Annotated[list[Name], Field(min_length=1, max_length=64, fail_fast=True)]
Choices = Annotated[list[Name], Field(min_length=1, max_length=1000, fail_fast=True)]
_Prompts = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)


def _few_biases(given: Any) -> Any:
    if isinstance(given, dict) and len(given) > MAX_BIASES:
        raise ValueError(f"it has {len(given)} tokens, and at most {MAX_BIASES} are taken")
    return given


class StrictModel(BaseModel):
    """A model that converts no value and ignores no field."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_KEYS:
            raise ValueError(f"an object has {len(data)} fields, and at most {MAX_KEYS} are read")
        return data


class ModelRequest(StrictModel):
    model: Name | None = None


class StreamOptions(StrictModel):
    """Whether a stream reports usage: at its end, or in each chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(StrictModel):
    """A schema for the answer. ``strict`` has no effect: the answer always matches."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema has to be given with the type json_schema, and only then")
        return self


class StructuredOutputs(StrictModel):
    """vLLM's field: exactly one of a schema, a regular expression, a choice, a grammar."""

    json_: dict[str, Any] | None = Field(default=None, alias="json")
    regex: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    choice: Choices | None = None
    grammar: Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        given = [self.json_, self.regex, self.choice, self.grammar]
        if sum(one is not None for one in given) != 1:
            raise ValueError("give exactly one of json, regex, choice and grammar")
        return self


class DraftwiseOptions(StrictModel):
    """draftwise's own fields.

    preset, policy, plans: how this request drafts; plans are draft lengths. label: task whose
    statistics it shares. tenant: owner of the answers that it may draft from. private: no
    statistics are kept of it. deadline_s: seconds after which the request is cancelled. pieces:
    report the drafter of each piece of text. speculation, drafters, max_draft: as in
    ``RequestParams`` and vLLM's ``vllm_xargs``.
    """

    preset: Name | None = None
    policy: Name | None = None
    plans: Plans | None = None
    label: Name | None = None
    tenant: Name | None = None
    private: bool = False
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    pieces: bool = False
    speculation: bool = True
    drafters: Drafters | None = None
    max_draft: Annotated[int, Field(ge=0, le=LONGEST_PLAN)] | None = None

    @model_validator(mode="after")
    def _names_each_plan_once(self) -> DraftwiseOptions:
        if self.plans is not None and len(set(self.plans)) < len(self.plans):
            raise ValueError("plans: a draft length stands there twice")
        return self


class BaseRequest(ModelRequest):
    """Fields that both endpoints accept."""

    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    n: Annotated[int, Field(ge=1, le=64)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[Token], Field(max_length=64, fail_fast=True)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Annotated[
        dict[Annotated[str, Field(max_length=32)], Annotated[float, Field(ge=-100, le=100)]] | None,
        Field(json_schema_extra={"maxProperties": MAX_BIASES}),
        BeforeValidator(_few_biases),
    ] = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    user: Name | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    draftwise: DraftwiseOptions = Field(default_factory=DraftwiseOptions)

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if not _asks_for_nothing(key, value)}

    @model_validator(mode="after")
    def _streams_what_it_says(self) -> BaseRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options only goes with stream: true")
        if 0 < self.temperature < 1e-3:
            raise ValueError("temperature is 0 (greedy) or at least 0.001")
        if self.structured_outputs is not None and self.response_format is not None:
            raise ValueError("give response_format or structured_outputs, not both")
        return self

    @property
    def has_form(self) -> bool:
        """Whether the answer follows a grammar, which takes long to compile."""
        is_free = self.response_format is None or self.response_format.type == "text"
        return self.structured_outputs is not None or not is_free

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(BaseRequest):
    """Body of ``/v1/completions``: one prompt or many, as text or token ids."""

    prompt: Text | Tokens | Annotated[list[Text], _Prompts] | Annotated[list[Tokens], _Prompts]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[Any]:
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else list(self.prompt)


class Part(StrictModel):
    """A part of a message's content; only text is supported."""

    type: Literal["text"]
    text: Text


class Called(StrictModel):
    """The function that an earlier answer called; arguments are JSON text."""

    name: Name
    arguments: Text


class ToolCall(StrictModel):
    id: Name
    type: Literal["function"] = "function"
    function: Called


class Message(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[Part], Field(max_length=1000, fail_fast=True)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: Name | None = None


Messages = Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)]


class Function(StrictModel):
    """A function that the model may call. strict: only affects calls forced by ``tool_choice``."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: Function


class NamedFunction(StrictModel):
    name: Name


class NamedTool(StrictModel):
    """A tool choice that names the tool to call."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(BaseRequest):
    """Body of ``/v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None

    @property
    def has_form(self) -> bool:
        """Whether the answer follows a grammar, including that of a tool call."""
        return super().has_form or self.tool_choice not in (None, "auto", "none")

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs only goes with logprobs: true")
        names = {tool.function.name for tool in self.tools or ()}
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice names no tool; the tools are: {sorted(names)}")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice is required, and there are no tools")
        holds = isinstance(self.tool_choice, NamedTool) or self.tool_choice in ("required", "none")
        if not holds and any(tool.function.strict for tool in self.tools or ()):
            raise ValueError("tools: strict only goes with a tool_choice that forces a call")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ: give one")
        return self


def _asks_for_nothing(key: Any, value: Any) -> bool:
    neutral = ((type(one), one) for one in NEUTRAL.get(key, ()))  # 1 is not True
    return value is None or key in IGNORED or (type(value), value) in neutral


class TokenizeRequest(ModelRequest):
    """Body of vLLM's ``/tokenize``: a text or a conversation."""

    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _is_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt, a text, or messages")
        return self


class DetokenizeRequest(ModelRequest):
    """Body of vLLM's ``/detokenize``."""

    tokens: Annotated[list[Token], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    **dict.fromkeys((400, 405, 413, 415), "invalid_request_error"),
}
_EXPECTED: Mapping[str, str] = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "a string, or a list of strings",
    "messages": 'a list of messages such as {"role": "user", "content": "Hello"}',
}
"""Types of union fields: a validation error would name only one of them."""
_NOT_SERVED: Mapping[str, str] = {
    "best_of": "one candidate is drawn for each answer; use n for several answers",
    "suffix": "text is continued, not filled in; leave the field out",
    "functions": "this is the old form of tools; use tools and tool_choice",
    "function_call": "this is the old form of tool_choice; use tools and tool_choice",
    "min_tokens": "no least length is enforced; use ignore_eos with max_tokens",
    "modalities": "answers are text alone",
}
_FIELD = re.compile(r"[a-z_][a-z0-9_]*|[0-9]+", re.ASCII)


class Refused(Exception):
    """A refused request: an HTTP status, and a message with the problem and its solution."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if (status >= 500 or status == 408) and retry_after_s is None:
            # or OpenAI's clients would retry in vain
            self.headers["x-should-retry"] = "false"

    @property
    def body(self) -> dict[str, Any]:
        about = {"type": _TYPES.get(self.status, "server_error"), "param": self.param}
        return {"error": {"message": self.message, **about, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, headers=self.headers)


def no_object() -> Refused:
    message = "the request has no JSON object as its body: send one, "
    return Refused(400, message + "with the header Content-Type: application/json")


def first_wrong(errors: Sequence[Mapping[str, Any]]) -> Refused:
    # in a union, report the member whose validation got furthest
    error = max(errors, key=_furthest)
    *above, last = [str(part)[:100] for part in error["loc"]] or [""]
    # unions add their members' names to the path, which mean nothing to a client
    path = [part for part in above if _FIELD.fullmatch(part) and part != "query"]
    message = str(error["msg"]).removeprefix("Value error, ")
    is_unknown = error["type"] == "extra_forbidden"  # named even if it is no identifier
    if is_unknown or _FIELD.fullmatch(last):
        path.append(last)
    name = ".".join(path)
    if is_unknown:
        message = f"the field {name!r} is not honoured here: leave it out"
        if len(path) == 1 and name in _NOT_SERVED:
            message = f"{name}: {_NOT_SERVED[name]}"
    elif name in _EXPECTED and str(error["type"]).endswith("_type"):
        message = f"{name}: write {_EXPECTED[name]}"
    elif name:
        message = f"{name}: {message}"
    return Refused(400, message, param=name or None)


def _furthest(error: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """The error of the union member whose type fits best."""
    kind = str(error["type"])
    return kind == "extra_forbidden", not kind.endswith("_type"), len(error["loc"])
