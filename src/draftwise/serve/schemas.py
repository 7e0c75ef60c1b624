"""Request schemas: OpenAI's fields, those of other servers that mean the same, and draftwise's own.

What cannot change an answer is ignored: ``null``, empty values, ``IGNORED`` fields, ``false`` where
it switches a feature off, and the ``NEUTRAL`` values of other fields. What the server can honour is
a field of a schema. Any other field is refused by the name that the client gave it, since ignoring
it would silently change the answer. In messages and tools an unknown field goes to the chat
template, which alone decides what it means; those in ``_CARRIERS``, which hold content, are
refused.

Every list and object has a maximum size, and validation stops at its first invalid item: a body of
8 MB would otherwise take minutes to refuse (``tests/serve/test_hostile.py`` checks every field).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from draftwise.types import LONGEST_PLAN

MAX_KEYS = 64  # of an object; no schema has as many fields
MAX_TOKEN_IDS, MAX_PROMPTS = 2**20, 1024
MAX_BIASES = 1024
MAX_PLANS = 128
MAX_GRAMMAR_CHARS = 100_000
MAX_TOP_LOGPROBS = 20
GREEDY_BELOW = 1e-3  # a temperature; logits divided by less overflow, and its answers are greedy

_OFF: Sequence[tuple[Sequence[Any], str]] = (
    ((1,), "best_of length_penalty typical_p tfs tfs_z num_beams"),
    (
        (0,),
        "mirostat mirostat_mode top_a dynatemp_range smoothing_factor xtc_probability n_keep "
        "dry_multiplier n_probs min_keep n_indent n_discard t_max_predict_ms no_repeat_ngram_size "
        "min_length min_new_tokens penalty_alpha top_n_tokens",
    ),
    ((-1,), "reasoning_budget thinking_budget thinking_token_budget"),
    ((0, 1), "repeat_penalty epsilon_cutoff eta_cutoff"),
    ((0, -1), "top_n_sigma nsigma truncate_prompt_tokens prompt_logprobs"),
    ((True,), "spaces_between_special_tokens do_sample detokenize parse_tool_calls"),
    ((True, False), "add_special_tokens"),  # a chat's template writes them, whatever this says
    (("disabled",), "truncation"),
    ((["text"],), "modalities"),
)
NEUTRAL = {name: values for values, names in _OFF for name in names.split()}
"""Unsupported fields, with the values at which they have no effect."""

_IGNORED = (
    # OpenAI's own service, and hints that any answer satisfies
    "metadata store verbosity service_tier safety_identifier moderation",
    "prompt_cache_key prompt_cache_retention prompt_cache_options cache_control timeout",
    # other servers: ids, caches, queues, back ends, and what a response reports beside the answer
    "request_id rid session_id conversation_id cache_prompt id_slot slot_id keep_alive priority",
    "kv_transfer_params guided_decoding_backend chat_template_content_format timings_per_token",
    "return_progress include_reasoning separate_reasoning stream_reasoning reasoning_format usage",
    "skip_reading_prefix_cache return_cached_tokens_details data_parallel_rank ttl",
    # gateways: which server answers
    "provider route models",
    # parameters of samplers; what switches such a sampler on is refused
    "mirostat_tau mirostat_eta repeat_last_n dynatemp_exponent smoothing_curve xtc_threshold",
    "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers penalize_nl",
    # what only a chat's template reads; in a chat these are fields
    "reasoning_effort reasoning enable_thinking think thinking chat_template_kwargs",
    "add_generation_prompt continue_final_message parallel_tool_calls tool_choice",
)
IGNORED = frozenset(name for names in _IGNORED for name in names.split())
"""Accepted and unused."""

_CARRIERS = frozenset(
    {"audio", "image", "images", "image_url", "video", "videos", "file", "files", "documents"}
    | {"input_audio", "attachments", "prefix", "partial"}
)
"""Fields of a message whose content no template is given."""
_NAMES = frozenset({"id", "name", "tool_call_id", "type"})
"""Fields that are never empty; in other fields of a message "" is a text."""


def _whole(given: Any) -> Any:
    """Clients whose language has one type of number write 5 as 5.0."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _off_below_0(given: Any) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return 0 if is_number and given < 0 else given


def _without_empty(given: Any) -> Any:
    if isinstance(given, list):
        return [one for one in given if one not in ("", None)]
    return None if given == "" else given


def _as_object(given: Any) -> Any:
    """A schema, or the JSON text of one."""
    if isinstance(given, str) and len(given) <= MAX_GRAMMAR_CHARS:
        try:
            return json.loads(given)
        except ValueError:
            return given
    return given


Whole = BeforeValidator(_whole)
Text = Annotated[str, Field(max_length=10_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Token = Annotated[int, Whole, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)]
Length = Annotated[int, Whole, Field(ge=1, le=128)]
Plans = Annotated[list[Length], Field(min_length=1, max_length=MAX_PLANS, fail_fast=True)]
Drafters = Annotated[list[Name], Field(min_length=1, max_length=64, fail_fast=True)]
Choices = Annotated[list[Name], Field(min_length=1, max_length=1000, fail_fast=True)]
Regex = Annotated[str, Field(min_length=1, max_length=20_000)]
Grammar = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Schema = Annotated[dict[str, Any], BeforeValidator(_as_object)]
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


class Extensible(StrictModel):
    """A model that ignores unknown fields."""

    model_config = ConfigDict(extra="ignore")


class ForTemplates(StrictModel):
    """A message, or a part of one: fields that this server does not know go to the template.

    Empty ones are left out, since clients send back all fields of a response. Errors: a field that
    holds content which the prompt would lack.
    """

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.model_fields.keys() - _NAMES
        kept = {k: v for k, v in data.items() if v is not None and (k in known or v not in _EMPTY)}
        for name in kept.keys() & _CARRIERS:
            if kept[name] is not False:
                raise ValueError(f"{name!r} is not served: messages are text alone; leave it out")
        return kept


class StreamOptions(Extensible):
    """Whether a stream reports usage: at its end, or in each chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class JsonSchema(Extensible):
    """A schema for the answer. ``strict`` has no effect: the answer always matches."""

    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")


class ResponseFormat(Extensible):
    """schema: of a ``json_object``, as in llama.cpp and Fireworks."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ValueError("json_schema has to be given with the type json_schema")
        return self

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The schema that the answer has to match; None for free text."""
        if self.type == "text":
            return None
        if self.json_schema is not None and self.type == "json_schema":
            return self.json_schema.schema_
        return {"type": "object"} if self.schema_ is None else self.schema_


class StructuredOutputs(StrictModel):
    """vLLM's field: exactly one of a schema, a regular expression, a choice, a grammar."""

    json_: Schema | None = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    regex: Regex | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_off(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None and v is not False}

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        given = [self.json_, self.json_object, self.regex, self.choice, self.grammar]
        if sum(one is not None for one in given) != 1:
            raise ValueError("give exactly one of json, json_object, regex, choice and grammar")
        return self

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; None for another form."""
        return {"type": "object"} if self.json_object else self.json_


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
    priority: Annotated[int, Whole, Field(ge=-1000, le=1000)] = 0
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    pieces: bool = False
    speculation: bool = True
    drafters: Drafters | None = None
    max_draft: Annotated[int, Whole, Field(ge=0, le=LONGEST_PLAN)] | None = None

    @model_validator(mode="after")
    def _names_each_plan_once(self) -> DraftwiseOptions:
        if self.plans is not None and len(set(self.plans)) < len(self.plans):
            raise ValueError("plans: a draft length stands there twice")
        return self


class BaseRequest(ModelRequest):
    """Fields that both endpoints accept. Sampling fields that are not given are the server's."""

    max_tokens: Annotated[int, Whole, Field(ge=-1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Whole, Field(ge=-1, lt=2**31)] | None = None
    n_predict: Annotated[int, Whole, Field(ge=-1, lt=2**31)] | None = None
    min_tokens: Annotated[int, Whole, Field(ge=0, lt=2**31)] = 0
    n: Annotated[int, Whole, Field(ge=1, le=64)] = 1
    seed: Annotated[int, Whole, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[
        Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None,
        BeforeValidator(_without_empty),
    ] = None
    stop_token_ids: Annotated[list[Token], Field(max_length=64, fail_fast=True)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Whole, BeforeValidator(_off_below_0), Field(lt=2**31)] | None = None
    min_p: Annotated[float, BeforeValidator(_off_below_0), Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
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
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    user: Name | None = None
    cache_salt: Name | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Regex | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    draftwise: DraftwiseOptions = Field(default_factory=DraftwiseOptions)

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if _is_same(data.get("best_of"), data.get("n")):
            data = data | {"best_of": None}
        known = cls.model_fields
        return {k: v for k, v in data.items() if not _asks_for_nothing(k, v, k in known)}

    @model_validator(mode="after")
    def _asks_for_one_form(self) -> BaseRequest:
        own = (self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        is_free = self.response_format is None or self.response_format.schema_of_answer is None
        if (not is_free) + sum(one is not None for one in (self.structured_outputs, *own)) > 1:
            raise ValueError("give response_format or structured_outputs, not both")
        if self.min_tokens and (self.has_form or self.stops):
            raise ValueError("min_tokens: it does not go with stop or a form, which end the answer")
        if len({self.max_tokens, self.max_completion_tokens, self.n_predict} - {None}) > 1:
            raise ValueError("max_tokens, max_completion_tokens and n_predict differ: give one")
        return self

    @property
    def form(self) -> StructuredOutputs | None:
        """The form of the answer, from whichever field says it."""
        own: dict[str, Any] = {"json": self.guided_json, "regex": self.guided_regex}
        own |= {"choice": self.guided_choice, "grammar": self.guided_grammar}
        if self.guided_json is None and self.response_format is not None:
            own["json"] = self.response_format.schema_of_answer
        if self.structured_outputs is not None or all(one is None for one in own.values()):
            return self.structured_outputs
        return StructuredOutputs.model_validate(own)

    @property
    def has_form(self) -> bool:
        """Whether the answer follows a grammar, which takes long to compile."""
        return self.form is not None

    @property
    def budget(self) -> int | None:
        """Maximum tokens of the answer; None = the default, -1 = as many as there is room for."""
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        return next((num for num in given if num is not None), None)

    @property
    def tenant(self) -> str | None:
        return self.draftwise.tenant or self.cache_salt or self.user

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(BaseRequest):
    """Body of ``/v1/completions``: one prompt or many, as text or token ids."""

    prompt: Text | Tokens | Annotated[list[Text], _Prompts] | Annotated[list[Tokens], _Prompts]
    add_special_tokens: bool = True
    echo: bool = False
    logprobs: Annotated[int, Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[Any]:
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else list(self.prompt)


class Part(ForTemplates):
    """A part of a message's content; only text is supported."""

    type: Literal["text", "input_text", "output_text", "refusal"] = "text"
    text: Text = ""
    refusal: Text = ""


class Called(ForTemplates):
    """The function that an earlier answer called; arguments are a JSON object or its text."""

    name: Name
    arguments: Text | dict[str, Any] = Field(default_factory=dict)


class ToolCall(ForTemplates):
    id: Name | None = None
    type: Literal["function"] = "function"
    function: Called


Content = Annotated[list[Part | Text], Field(max_length=1000, fail_fast=True)]


def text_of(content: str | Sequence[Part | str]) -> str:
    """The text of a content in parts."""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else part.text or part.refusal for part in content)


class Message(ForTemplates):
    """refusal, reasoning: what an earlier answer had in place of content, or before it."""

    role: Name
    content: Text | Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: Name | None = None
    function_call: Called | None = None
    refusal: Text | None = None
    reasoning: Text | None = None


Messages = Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)]


class Function(ForTemplates):
    """A function that the model may call. strict: its arguments match ``parameters``."""

    name: Annotated[str, Field(pattern=r"^\S{1,256}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(ForTemplates):
    """A tool; only functions are supported."""

    type: Literal["function"] = "function"
    function: Function


class NamedFunction(Extensible):
    name: Name


class NamedTool(Extensible):
    """A tool choice that names the tool to call."""

    type: Literal["function"] = "function"
    function: NamedFunction


def _choice(given: Any) -> Any:
    """Other ways to write a choice: ``any``, ``{"type": "auto"}``, a name beside the type."""
    if isinstance(given, dict) and "function" not in given:
        named = {"type": "function", "function": {"name": given.get("name")}}
        given = named if "name" in given else given.get("type", given)
    return "required" if given == "any" else given


class ForTemplate(StrictModel):
    """What a client says to the chat template, beside the messages.

    continue_final_message: the prompt ends inside the last message, the assistant's.
    add_generation_prompt: whether it ends at the start of the assistant's turn; None = unless it
    continues a message.
    """

    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[Name, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _ends_once(self) -> ForTemplate:
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError("continue_final_message: it goes with add_generation_prompt: false")
        return self

    @property
    def end(self) -> dict[str, bool]:
        """How the prompt ends, as arguments of ``apply_chat_template``."""
        if self.continue_final_message:
            return {"continue_final_message": True}
        own = self.add_generation_prompt
        return {} if own is None else {"add_generation_prompt": own}


class Prediction(Extensible):
    """OpenAI's predicted output: a text that the answer probably resembles."""

    type: Literal["content"] = "content"
    content: Text | Content

    @property
    def text(self) -> str:
        return text_of(self.content)


class Thinking(StrictModel):
    """Whether the model is to think, and how much, as OpenRouter, Z.ai and Anthropic write it.

    exclude, summary: what a response shows of it.
    """

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    enabled: bool | None = None
    effort: Name | None = None
    exclude: Any = None
    summary: Any = None

    @property
    def is_on(self) -> bool | None:
        return self.enabled if self.type is None else self.type != "disabled"


class ChatRequest(BaseRequest, ForTemplate):
    """Body of ``/v1/chat/completions``."""

    messages: Messages
    logprobs: bool = False
    top_logprobs: Annotated[int, Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | None, BeforeValidator(_choice)
    ] = None
    parallel_tool_calls: bool = True
    functions: Annotated[list[Function], Field(max_length=128, fail_fast=True)] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    prediction: Prediction | None = None
    reasoning_effort: Name | None = None
    reasoning: Thinking | None = None
    enable_thinking: bool | None = None
    think: bool | Name | None = None
    thinking: Thinking | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_allowed_tools(cls, data: Any) -> Any:
        """OpenAI's ``allowed_tools``: some of the tools, and whether one has to be called."""
        choice = data.get("tool_choice") if isinstance(data, dict) else None
        if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
            return data
        asked = choice.get("allowed_tools", choice)
        allowed = asked.get("tools") if isinstance(asked, dict) else None
        if not isinstance(allowed, list) or not isinstance(tools := data.get("tools"), list):
            raise ValueError("tool_choice: allowed_tools has a mode and tools, which are in tools")
        names = [_name_of(one) for one in allowed]
        return data | {
            "tools": [one for one in tools if _name_of(one) in names],
            "tool_choice": asked.get("mode", "auto"),
        }

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the model may call."""
        if self.choice == "none":
            return ()
        return [Tool(function=function) for function in self.functions or ()] or self.tools or ()

    @property
    def forced(self) -> Sequence[Tool]:
        """The tools one of which the answer has to call; none if it may be text."""
        if isinstance(choice := self.choice, (NamedTool, NamedFunction)):
            name = _name_of(choice.model_dump())
            return [tool for tool in self.offered if tool.function.name == name]
        return self.offered if choice == "required" else ()

    @property
    def choice(self) -> str | NamedTool | NamedFunction | None:
        return self.function_call if self.functions else self.tool_choice

    @property
    def has_form(self) -> bool:
        """Whether the answer follows a grammar, including that of a tool call."""
        strict = any(tool.function.strict for tool in self.offered)
        return super().has_form or bool(self.forced) or strict

    @property
    def template_options(self) -> dict[str, Any]:
        """What the client says to the chat template, and how much it wants the model to think."""
        objects = [one for one in (self.thinking, self.reasoning) if one is not None]
        efforts = [self.reasoning_effort, *(one.effort for one in objects)]
        switches = [self.enable_thinking, *(one.is_on for one in objects)]
        (efforts if isinstance(self.think, str) else switches).append(self.think)  # type: ignore[arg-type]
        effort = next((one for one in efforts if one is not None), None)
        is_on = False if effort == "none" else next((b for b in switches if b is not None), None)
        thinks = {"enable_thinking": is_on, "reasoning_effort": effort}
        given = {name: value for name, value in thinks.items() if value is not None}
        return given | self.chat_template_kwargs

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs only goes with logprobs: true")
        if self.choice not in (None, "auto", "none") and not self.forced:
            names = sorted(tool.function.name for tool in self.offered)
            raise ValueError(f"tool_choice names no tool; the tools are: {names}")
        return self


def _name_of(tool: Any) -> Any:
    """The name in ``{"function": {"name": ...}}`` or in ``{"name": ...}``."""
    found = tool.get("function", tool) if isinstance(tool, dict) else None
    return found.get("name") if isinstance(found, dict) else None


_EMPTY: tuple[Any, ...] = ("", [], {})


def _is_same(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, and not true."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _asks_for_nothing(key: Any, value: Any, is_known: bool) -> bool:
    if value is None or (value in _EMPTY and key not in ("prompt", "messages")):
        return True
    if is_known:
        return key == "logprobs" and value is False
    neutral = NEUTRAL.get(key, ())
    is_off = value is False and True not in neutral
    return is_off or key in IGNORED or any(_is_same(value, one) for one in neutral)


class TokenizeRequest(ModelRequest, ForTemplate):
    """Body of vLLM's ``/tokenize``: a text or a conversation."""

    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

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
    "modalities": "answers are text alone",
    "background": "an answer comes with its request; leave the field out",
    **dict.fromkeys(
        ("previous_response_id", "conversation"),
        "no response is kept here; send the whole conversation as input",
    ),
    **dict.fromkeys(
        ("regex", "ebnf", "grammar", "json_schema", "format"),
        "say the answer's form in response_format or structured_outputs",
    ),
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
