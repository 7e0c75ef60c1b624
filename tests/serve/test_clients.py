"""What ordinary clients send: ignored where it cannot change the answer, honoured where it can be,
refused by its own name where ignoring it would change the answer.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, get_type_hints

import openai
import pytest
from openai.types import CompletionUsage
from openai.types import completion_create_params as completion_params
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel

from draftwise.serve.responses import num_predicted
from draftwise.serve.run import make_service
from draftwise.serve.schemas import ChatRequest, CompletionRequest
from draftwise.serve.settings import ServerSettings
from draftwise.types import DraftwiseError, SamplingParams
from serve.chatml import TEMPLATE, Chat, chatting, speculator

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
STRICT = {"type": "function", "function": {**ADD["function"], "strict": True}}
TAGGED = """\
<tool_call>
<function=add>
<parameter=a>
1
</parameter>
</function>
</tool_call>"""
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def turn(role: str, content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(name: str = "add", arguments: Any = '{"a": 1}', **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": "c1", "type": "function", "function": function, **more}


@pytest.mark.parametrize("how", ["object", "dict"])
def test_an_answer_is_sent_back_as_it_came(client: openai.OpenAI, how: str) -> None:
    messages: list[Any] = [turn("user", "Hi")]
    for _ in range(3):
        made = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=4, tools=[ADD, NOW]
        )
        said = made.choices[0].message
        messages += [said if how == "object" else said.model_dump(), turn("user", "more")]
    assert len(messages) == 7


@pytest.mark.parametrize(
    "extra",
    [
        {"refusal": None},
        {"annotations": [], "audio": None, "function_call": None},
        {"annotations": [{"type": "url_citation"}], "tool_calls": None},
        {"tool_calls": [], "name": None, "tool_call_id": None, "refusal": ""},
        {"id": "msg_1", "index": 0, "created": 12, "finish_reason": "stop", "logprobs": None},
        {"cache_control": {"type": "ephemeral"}, "metadata": {"a": {"b": [1]}}},
        {"provider_specific_fields": {"refusal": None}, "thinking_blocks": [], "images": []},
        {"name": "", "tool_call_id": ""},
        {"parsed": {"a": 1}, "usage": {"total_tokens": 3}, "prefix": False, "weight": 1},
        {"additional_kwargs": {}, "response_metadata": {}, "type": "message", "status": "done"},
    ],
)
@pytest.mark.parametrize("role", ["assistant", "user"])
def test_extras_of_messages_change_nothing(chat: Chat, role: str, extra: dict[str, Any]) -> None:
    plain = [turn("user", "a"), turn(role, "b"), turn("user", "c")]
    given = [plain[0], {**plain[1], **extra}, plain[2]]
    assert chat.prompt(given) == chat.prompt(plain)
    assert chat.ask(given).status == 200


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"audio": {"id": "a1"}}, "audio"),
        ({"images": ["aGk="]}, "images"),
        ({"prefix": True}, "prefix"),
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "image_url"),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "file", "file": {"id": "f"}}]},
            "file",
        ),
        ({"content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}, "input_audio"),
        ({"content": [{"type": "video_url", "url": "x"}]}, "content"),
        ({"content": {"text": "x"}}, "content"),
        ({"tool_calls": [{"id": "c", "type": "custom", "custom": {}}]}, "tool_calls"),
        ({"role": "robot"}, "role"),
    ],
)
def test_content_that_no_prompt_would_have_is_refused(
    chat: Chat, extra: dict[str, Any], name: str
) -> None:
    said = chat.ask([turn("user"), turn("assistant", "y") | extra, turn("user")])
    assert said.status == 400, said.text
    assert name in said.error["message"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}], "one two"),
        ([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}], "x"),
        ([{"type": "text", "text": "x", "annotations": [], "citations": None}], "x"),
        ([{"type": "input_text", "text": "x"}, {"type": "output_text", "text": "y"}], "xy"),
        (["plain ", "texts"], "plain texts"),
        ([{"type": "refusal", "refusal": "I will not."}], "I will not."),
        ([], ""),
        ("", ""),
    ],
)
def test_content_in_parts(chat: Chat, content: Any, text: str) -> None:
    messages = [turn("user", "a"), turn("assistant", content), turn("user", "b")]
    assert f"<|im_start|>assistant\n{text}<|im_end|>" in chat.prompt(messages)


def test_turns_of_tools(chat: Chat) -> None:
    """As agents send them: no content, indices of a stream, ids, arguments of every form."""
    forms = ['{"a": 1}', {"a": 1}]
    for arguments in forms:
        for content in (None, ""):
            messages = [
                turn("user", "q"),
                turn("assistant", content, tool_calls=[called(arguments=arguments, index=0)]),
                turn("tool", "2", tool_call_id="c1", name="add"),
            ]
            prompt = chat.prompt(messages, tools=[ADD])
            assert 'assistant\n<tool_call>add {"a": 1}</tool_call><|im_end|>' in prompt
            assert "<|im_start|>tool\n2<|im_end|>" in prompt
            assert chat.ask(messages, tools=[ADD]).status == 200
    for nothing in ("", "{}", {}):
        message = turn("assistant", None, tool_calls=[called(arguments=nothing)])
        assert "add {}</tool_call>" in chat.prompt([turn("user"), message, turn("tool", None)])
    for empty in ({"id": ""}, {"type": None}, {"id": None, "type": ""}):
        message = turn("assistant", None, tool_calls=[called(**empty)])
        assert 'add {"a": 1}' in chat.prompt([turn("user"), message, turn("tool", "")])
    without_id = {"function": {"name": "add", "arguments": "not JSON"}}
    message = {"role": "assistant", "tool_calls": [without_id]}
    assert 'add "not JSON"' in chat.prompt([turn("user"), message, turn("tool", "")])


def test_an_answer_may_follow_an_answer(chat: Chat) -> None:
    """As with OpenAI: agents that speak for others end with a message of the assistant's role."""
    messages = [turn("user", "a"), turn("assistant", "b")]
    assert chat.prompt(messages).endswith("assistant\nb<|im_end|>\n<|im_start|>assistant\n")
    assert chat.ask(messages).status == chat.ask(messages[1:]).status == 200


def test_the_old_form_of_calls_sent_back(chat: Chat) -> None:
    message = {"role": "assistant", "content": None, "function_call": called()["function"]}
    result = {"role": "function", "name": "add", "content": "2"}
    prompt = chat.prompt([turn("user"), message, result])
    assert '<tool_call>add {"a": 1}</tool_call>' in prompt
    assert "<|im_start|>tool\n2<|im_end|>" in prompt


def test_what_an_earlier_answer_thought_and_refused(chat: Chat) -> None:
    for name in ("reasoning", "reasoning_content"):
        messages = [turn("user"), turn("assistant", "b", **{name: "hm"}), turn("user")]
        assert "assistant\n(hm) b" in chat.prompt(messages)
    messages = [turn("user"), turn("assistant", None, refusal="I will not."), turn("user")]
    assert "assistant\nI will not.<|im_end|>" in chat.prompt(messages)


def test_the_developer_is_the_system_where_the_template_has_no_other() -> None:
    messages = [turn("developer", "Be brief."), turn("user", "Hi")]
    for template, role in (
        (TEMPLATE, "system"),
        (TEMPLATE.replace("{%- for m in messages %}", "{# developer #}\\g"), "developer"),
        (
            "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}"
            "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}",
            "system",
        ),
    ):
        template = template.replace("\\g", "{%- for m in messages %}")
        with chatting(speculator(template)) as chat:
            assert f"<|im_start|>{role}\nBe brief.<|im_end|>" in chat.prompt(messages)
            assert chat.ask(messages).status == 200


OFF = {
    "temperature": None, "top_p": None, "n": None, "stop": None, "max_tokens": None, "seed": -1,
    "user": "", "logit_bias": {}, "stream_options": {"include_usage": True}, "tools": [],
    "tool_choice": "auto", "parallel_tool_calls": True, "functions": [], "function_call": "none",
    "response_format": {"type": "text"}, "logprobs": False, "top_logprobs": 0,
    "metadata": {"a": "b"},
    "store": True, "service_tier": "auto", "safety_identifier": "x", "prompt_cache_key": "k",
    "prompt_cache_retention": "24h", "verbosity": "low", "modalities": ["text"], "audio": None,
    "web_search_options": None, "prediction": None, "stop_token_ids": [], "top_k": -1, "min_p": 0,
    "repetition_penalty": 1, "length_penalty": 1.0, "best_of": 1, "use_beam_search": False,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "min_tokens": 0,
    "add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False,
    "include_stop_str_in_output": False, "documents": [], "chat_template": None, "priority": 3,
    "chat_template_kwargs": {}, "mm_processor_kwargs": None, "guided_json": None, "bad_words": [],
    "guided_decoding_backend": "xgrammar", "request_id": "r", "cache_salt": "s", "echo": False,
    "return_token_ids": False, "allowed_token_ids": [], "vllm_xargs": {}, "kv_transfer_params": {},
    "logits_processors": [], "truncate_prompt_tokens": None, "prompt_logprobs": 0, "rid": "r",
    "separate_reasoning": True, "return_hidden_states": False, "no_stop_trim": False, "regex": "",
    "ebnf": None, "lora_path": None, "session_params": None, "cache_prompt": True, "id_slot": -1,
    "typical_p": 1.0, "tfs_z": 1, "mirostat": 0, "mirostat_tau": 5.0, "repeat_penalty": 1.0,
    "repeat_last_n": 64, "xtc_probability": 0.0, "dry_multiplier": 0, "dry_base": 1.75, "n_keep": 0,
    "dynatemp_range": 0.0, "n_probs": 0, "grammar": "", "json_schema": {}, "samplers": [],
    "timings_per_token": False, "keep_alive": "5m", "options": {}, "format": "", "usage": {"a": 1},
    "ttl": 300, "route": "fallback", "transforms": [], "provider": {"order": ["a"]},
    "suffix": "", "top_a": 0, "timeout": 60.0, "extra_body": {},
    "watermark": False, "return_cached_tokens_details": True, "min_length": 0, "min_new_tokens": 0,
    "reasoning_budget": -1, "truncation": "disabled", "detokenize": True, "safe_prompt": False,
    "skip_reading_prefix_cache": True, "cache_control": {"type": "ephemeral"}, "reasoning": {},
    "some_feature_of_tomorrow": False, "return_tokens_as_token_ids": False,
}  # fmt: skip


@pytest.mark.parametrize("name", OFF)
def test_values_that_ask_for_nothing(chat: Chat, name: str) -> None:
    said = chat.ask(**{name: OFF[name]})
    assert said.status == 200, said.text
    assert not said.json["choices"][0]["message"].get("tool_calls")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"frobnicate": 1}, "frobnicate"),
        ({"maxTokens": 5}, "maxTokens"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"mirostat": 2}, "mirostat"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"repeat_penalty": 1.1}, "repeat_penalty"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"regex": "a+"}, "regex"),
        ({"lora_path": "x"}, "lora_path"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"do_sample": False}, "do_sample"),
        ({"detokenize": False}, "detokenize"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, "thinking.budget_tokens"),
        ({"reasoning": {"max_tokens": 64}}, "reasoning.max_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"seed": 0.5}, "seed"),
        ({"top_p": -0.1}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"min_p": 2}, "min_p"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"chat_template_kwargs": {"tokenize": False}}, "tokenize"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"eos_token": "x"}}, "eos_token"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "name": "add"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, "allowed_tools"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": [3]}}, "allowed_tools"),
        ({"min_tokens": 2, "stop": "x"}, "min_tokens"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    chat: Chat, fields: dict[str, Any], name: str
) -> None:
    said = chat.ask(**fields)
    assert said.status == 400, said.text
    assert name in said.error["message"]


def test_numbers_as_clients_write_them(chat: Chat) -> None:
    told = chat.ask(max_tokens=6, ignore_eos=True).json["choices"][0]["message"]["content"]
    for fields in (
        {"max_tokens": 6.0},
        {"max_tokens": 6, "max_completion_tokens": 6},
        {"max_tokens": None, "max_completion_tokens": 6.0},
        {"max_tokens": None, "n_predict": 6},
        {"temperature": 0.0, "seed": 7.0, "n": 1.0, "top_logprobs": 2.0, "logprobs": True},
        {"temperature": 1e-8},
        {"temperature": 1e-4, "top_k": -1, "min_p": -1},
        {"temperature": 9e-4, "top_k": 0.0, "min_p": 0.0, "repetition_penalty": 1},
        {"temperature": 1.5, "top_p": 0},
        {"temperature": 2, "top_k": 1.0},
        {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0.0, "stop": ["", None]},
        {"temperature": 0, "stop_token_ids": [], "logit_bias": {"5": 0}},
    ):
        said = chat.ask(**{"max_tokens": 6, "ignore_eos": True, **fields})
        assert said.status == 200, said.text
        assert said.json["choices"][0]["message"]["content"] == told, fields
        assert said.json["usage"]["completion_tokens"] == 6


def test_as_many_tokens_as_there_is_room_for(chat: Chat) -> None:
    body = ChatRequest.model_validate({"messages": [turn("user")], "max_tokens": -1})
    (asked,) = chat.live.service.parser.chat(body)
    assert asked.options["max_new_tokens"] == 4096 - len(asked.prompt)
    done = CompletionRequest.model_validate({"prompt": "abc", "max_tokens": -1.0})
    (asked,) = chat.live.service.parser.completion(done)
    assert asked.options["max_new_tokens"] == 4093


def test_a_seed_of_minus_1_is_none(chat: Chat) -> None:
    def seed(given: Any) -> Any:
        body = ChatRequest.model_validate({"messages": [turn("user")], "seed": given})
        return chat.live.service.parser.chat(body)[0].options["seed"]

    assert [seed(-1), seed(-1.0), seed(None)] == [None] * 3
    assert [seed(0), seed(7.0), seed(-2)] == [0, 7, 2**64 - 2]


def test_the_template_gets_what_the_client_says(chat: Chat) -> None:
    end, off = "<|im_start|>assistant\n", "<think></think>"
    for fields, tail in (
        ({}, ""),
        ({"chat_template_kwargs": {"enable_thinking": False}}, off),
        ({"chat_template_kwargs": {"enable_thinking": True}}, ""),
        ({"enable_thinking": False}, off),
        ({"think": False}, off),
        ({"think": "low"}, "effort low: "),
        ({"reasoning_effort": "high"}, "effort high: "),
        ({"reasoning_effort": "none"}, off + "effort none: "),
        ({"thinking": {"type": "disabled"}}, off),
        ({"thinking": {"type": "enabled"}}, ""),
        ({"reasoning": {"enabled": False}}, off),
        ({"reasoning": {"effort": "low", "exclude": True}}, "effort low: "),
        ({"reasoning": {"effort": "none", "summary": "auto"}}, off + "effort none: "),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "effort high: "),
        ({"chat_template_kwargs": {"reasoning_effort": "x", "unknown": [1]}}, "effort x: "),
        ({"chat_template_kwargs": None}, ""),
    ):
        assert chat.prompt(**fields).endswith(end + tail), fields
        assert chat.ask(**fields).status == 200


@pytest.mark.parametrize("content", ["The answer", "", "two\nlines", "spaced "])
def test_the_last_answer_is_continued(chat: Chat, content: str) -> None:
    """The answer has the new text alone: what the model says after the prompt so far."""
    messages = [turn("user", "q"), turn("assistant", content)]
    for fields in ({}, {"add_generation_prompt": False}):
        fields = {**fields, "continue_final_message": True}
        prompt = chat.prompt(messages, **fields)
        assert prompt.rstrip() == (chat.prompt(messages[:1]) + content).rstrip()
        said = chat.ask(messages, max_tokens=5, **fields).json
        body = {"prompt": prompt, "add_special_tokens": False, "max_tokens": 5, "temperature": 0}
        told = chat.live.ask("/v1/completions", body).json
        assert said["choices"][0]["message"]["content"] == told["choices"][0]["text"]
        assert said["usage"] == told["usage"]


def test_a_prompt_without_the_start_of_an_answer(chat: Chat) -> None:
    with_start = chat.prompt()
    assert chat.prompt(add_generation_prompt=True) == with_start
    without = chat.prompt(add_generation_prompt=False)
    assert with_start == without + "<|im_start|>assistant\n"
    assert chat.ask(add_generation_prompt=False).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [ADD]},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": {"enable_thinking": False}, "tools": None},
        {"continue_final_message": True, "messages": [turn("user"), turn("assistant", "So")]},
    ],
)
def test_tokenize_has_the_prompt_of_the_same_chat(chat: Chat, fields: dict[str, Any]) -> None:
    body = {"messages": [turn("developer", "Be brief."), turn("user", "q")], **fields}
    said = chat.live.ask("/tokenize", body).json
    assert chat.tokenizer.decode(said["tokens"]) == chat.prompt(**body)
    assert said["count"] == chat.ask(**body).json["usage"]["prompt_tokens"]


@pytest.mark.parametrize("is_chat", [True, False])
def test_token_ids_of_prompt_and_answer(chat: Chat, is_chat: bool) -> None:
    """As those who train on answers ask vLLM: what was read and written, not text encoded again."""
    prompts = [chat.prompt([turn("user")])] if is_chat else ["ab", "c"]
    ids = [chat.tokenizer(prompt)["input_ids"] for prompt in prompts]
    body: dict[str, Any] = {"prompt": prompts, "logprobs": 1}
    if is_chat:
        body = {"messages": [turn("user")], "logprobs": True}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    body |= {"max_tokens": 5, "temperature": 0, "n": 2}
    body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    said = chat.live.ask(path, body).json
    events = chat.live.ask(path, {**body, "stream": True}).events
    if is_chat:
        assert said["prompt_token_ids"] == ids[0]
        sent = [event.get("prompt_token_ids") for event in events]
        assert sent == [ids[0], *[None] * (len(events) - 1)]
    for number, choice in enumerate(said["choices"]):
        parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == number]
        told = [i for part in parts for i in part.get("token_ids", ())]
        assert told == choice["token_ids"]
        assert 0 < len(told) <= 5
        names = [f"token_id:{i}" for i in told]
        if is_chat:
            assert [entry["token"] for entry in choice["logprobs"]["content"]] == names
            continue
        assert choice["logprobs"]["tokens"] == names
        assert names[0] in choice["logprobs"]["top_logprobs"][0]
        (own,) = [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part]
        assert own == choice["prompt_token_ids"] == ids[number // 2]
    assert "token_ids" not in chat.ask().json["choices"][0]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_stop_token_ids_with_an_ordinary_token(chat: Chat, path: str, include: bool) -> None:
    """The text ends before the token, which usage counts."""
    body = {"messages": [turn("user")]} if "chat" in path else {"prompt": "abc"}
    body |= {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    ids = chat.live.ask(path, body).json["choices"][0]["token_ids"]
    for stops in ([ids[4]], [ids[0]], [ids[9], ids[6]], [min({*range(200)} - {*ids})]):
        end = min((ids.index(stop) for stop in stops if stop in ids), default=len(ids))
        fields = {"stop_token_ids": stops, "include_stop_str_in_output": include}
        said = chat.live.ask(path, body | fields).json
        events = chat.live.ask(path, body | fields | {"stream": True}).events
        streamed = [event["choices"][0] for event in events]
        (choice,) = said["choices"]
        shown = ids[: end + include]
        text = chat.live.service.parser.codec.decode(shown)
        if "chat" in path:
            assert choice["message"]["content"] == text
            assert "".join(part["delta"].get("content", "") for part in streamed) == text
        else:
            assert choice["text"] == "".join(part["text"] for part in streamed) == text
        assert choice["finish_reason"] == ("stop" if end < len(ids) else "length")
        assert said["usage"]["completion_tokens"] == min(end + 1, len(ids))
        assert choice["token_ids"] == ids[: end + 1]


@pytest.mark.parametrize("least", [3, 6])
def test_min_tokens(chat: Chat, least: int) -> None:
    """The model would end at once: its end tokens are as likely as can be."""
    ends = chat.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<eos>"])
    bias = {str(end): 100 for end in ends}
    said = chat.ask(min_tokens=least, logit_bias=bias, max_tokens=20).json
    assert said["usage"]["completion_tokens"] == least + 1
    assert said["choices"][0]["finish_reason"] == "stop"


def test_forms_in_every_servers_words(chat: Chat) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    schema |= {"additionalProperties": False, "$schema": "https://example.com/draft", "$id": "/x"}
    for fields, text in (
        ({"guided_json": schema}, '{"n": 7}'),
        ({"guided_json": json.dumps(schema)}, '{"n": 7}'),
        ({"structured_outputs": {"json": json.dumps(schema), "regex": None}}, '{"n": 7}'),
        ({"guided_regex": "(ab){3}"}, "ababab"),
        ({"guided_choice": ["only"]}, "only"),
        ({"guided_grammar": 'start: "xyz"'}, "xyz"),
        ({"response_format": {"type": "json_object", "schema": schema}}, '{"n": 7}'),
        ({"response_format": {"type": "json_schema", "schema": schema}}, '{"n": 7}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "x", "strict": True, "schema": schema}}},
            '{"n": 7}',
        ),
    ):  # fmt: skip
        said = chat.ask(max_tokens=50, ignore_eos=True, **fields)
        assert said.status == 200, said.text
        assert said.json["choices"][0]["message"]["content"] == text
        assert said.json["choices"][0]["finish_reason"] == "stop"
    assert chat.ask(guided_regex="a", guided_choice=["b"]).status == 400


TEXTS = [
    # text, content, arguments of the calls
    ("just words", "just words", []),
    (CALL, None, ['{"a": 1}']),
    (CALL.replace("1", '1, "note": "</tool_call>"'), None, ['{"a": 1, "note": "</tool_call>"}']),
    (CALL.replace("1", '1, "note": "<tool_call>{"'), None, ['{"a": 1, "note": "<tool_call>{"}']),
    (CALL.replace("1", r'1, "note": "a \" } \\"'), None, [r'{"a": 1, "note": "a \" } \\"}']),
    (CALL + " and more", " and more", ['{"a": 1}']),
    ("So: " + CALL + "\nThen " + CALL + ".", "So: \nThen .", ['{"a": 1}'] * 2),
    (CALL + "\n\n" + CALL + "\n", None, ['{"a": 1}'] * 2),
    (CALL.replace('{"a": 1}', "null"), None, ["{}"]),
    (CALL.replace('{"a": 1}', '""'), None, ["{}"]),
    (CALL.replace(', "arguments": {"a": 1}', ""), None, ["{}"]),
    (CALL.replace('{"a": 1}', r'"{\"a\": 1}"'), None, ['{"a": 1}']),
    (CALL.replace("arguments", "parameters"), None, ['{"a": 1}']),
    ("<tool_call>\n" + CALL[11:-12] + "\n</tool_call>", None, ['{"a": 1}']),
    (CALL[:-12], None, ['{"a": 1}']),
    (CALL[11:-12], None, ['{"a": 1}']),
    (CALL[11:-12] + "; " + CALL[11:-12], None, ['{"a": 1}'] * 2),
    ("[" + CALL[11:-12] + "]", None, ['{"a": 1}']),
    ('{"function": ' + CALL[11:-12] + "}", None, ['{"a": 1}']),
    (CALL.replace("add", "sub"), CALL.replace("add", "sub"), []),
    ("<tool_call>{no}</tool_call>" + CALL, "<tool_call>{no}</tool_call>", ['{"a": 1}']),
    ('{"answer": [1, 2]}', '{"answer": [1, 2]}', []),
    ('{"answer": "' + CALL.replace('"', "'") + '"}', None, []),
    ("a < b and <tool", "a < b and <tool", []),
    ("  spaced ", "  spaced ", []),
    ("<tool_call>", "<tool_call>", []),
    (CALL.replace("1", "NaN"), CALL.replace("1", "NaN"), []),
    (TAGGED, None, ['{"a": 1}']),
    ("So: " + TAGGED + " then " + TAGGED, "So:  then ", ['{"a": 1}'] * 2),
    (TAGGED[:-12], None, ['{"a": 1}']),
    ("<tool_call><function=add></function></tool_call>", None, ["{}"]),
    (TAGGED.replace("1", "</function>"), None, ['{"a": "</function>"}']),
    (TAGGED.replace("1", "<parameter=b>"), None, ['{"a": "<parameter=b>"}']),
    (TAGGED.replace("1", "x\n</parameter>\ny"), None, [r'{"a": "x\n</parameter>\ny"}']),
    (TAGGED.replace("add", "sub"), TAGGED.replace("add", "sub"), []),
    (TAGGED.replace("</parameter>", ""), TAGGED.replace("</parameter>", ""), []),
    (
        TAGGED.replace("<parameter", "a <parameter"),
        TAGGED.replace("<parameter", "a <parameter"),
        [],
    ),
    (TAGGED[:40], TAGGED[:40], []),
    ("<tool_call><func", "<tool_call><func", []),
]


@pytest.mark.parametrize(("text", "content", "arguments"), TEXTS)
def test_calls_in_answers(chat: Chat, text: str, content: str | None, arguments: list[str]) -> None:
    whole = chat.told(text, tools=[ADD, NOW])
    streamed = chat.streamed(text, tools=[ADD, NOW])
    calls = whole["message"].get("tool_calls", [])
    if content is None and not arguments:
        content = text
    assert [call["function"] for call in calls] == [
        {"name": "add", "arguments": one} for one in arguments
    ]
    assert whole["message"]["content"] == content
    assert whole["finish_reason"] == ("tool_calls" if calls else "stop")
    assert (streamed["message"]["content"] or None) == content
    assert streamed["finish_reason"] == whole["finish_reason"]
    functions = [call["function"] for call in streamed["message"].get("tool_calls", [])]
    assert functions == [call["function"] for call in calls]
    assert len({call["id"] for call in calls}) == len(calls)


@pytest.mark.parametrize("num", [len(CALL) + 13, len(CALL) + 30, 2 * len(CALL) - 14])
def test_a_call_that_the_limit_cuts_off(chat: Chat, num: int) -> None:
    for choice in (
        chat.told(CALL + "\n" + CALL, tools=[ADD], max_tokens=num),
        chat.streamed(CALL + "\n" + CALL, tools=[ADD], max_tokens=num),
    ):
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        assert choice["finish_reason"] == "length"


def test_at_most_one_call(chat: Chat) -> None:
    text = CALL + CALL.replace("1", "2") + "[end]"
    for tell in (chat.told, chat.streamed):
        assert len(tell(text, tools=[ADD])["message"]["tool_calls"]) == 2
        choice = tell(text, tools=[ADD], parallel_tool_calls=False)
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"a": 1}'
        assert choice["message"]["content"] == "[end]"


def test_the_old_form_of_tools(chat: Chat) -> None:
    old = {"functions": [ADD["function"], NOW["function"]]}
    for tell in (chat.told, chat.streamed):
        choice = tell(CALL, **old)
        assert choice["message"]["function_call"] == {"name": "add", "arguments": '{"a": 1}'}
        assert choice["finish_reason"] == "function_call"
        assert "tool_calls" not in choice["message"]
        assert tell(CALL, **old, function_call="none")["message"]["content"] == CALL
    one = {"name": "one", "parameters": {"const": {"a": 1}}}
    old["functions"].append(one)
    said = chat.ask(**old, function_call={"name": "one"}, max_tokens=99).json["choices"][0]
    assert said["message"]["function_call"] == {"name": "one", "arguments": '{"a": 1}'}
    assert chat.ask(**old, function_call={"name": "sub"}).status == 400


@pytest.mark.parametrize(
    "choice",
    [
        "required", "any", {"type": "required"}, {"type": "any"},
        {"type": "function", "name": "add"},
        {"type": "function", "function": {"name": "add"}}, {"function": {"name": "add"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "add"}}]}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("temperature", [0, 1])
def test_forced_calls(chat: Chat, choice: Any, temperature: float) -> None:
    parameters = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$defs": {"One": {"type": "integer", "minimum": 1, "maximum": 9}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/One"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    said = chat.ask(tools=[tool], tool_choice=choice, max_tokens=99, temperature=temperature).json
    (call,) = said["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert 1 <= json.loads(call["function"]["arguments"])["a"] <= 9
    assert said["choices"][0]["finish_reason"] == "tool_calls"


def _fits(asked: Any, tokenizer: Any, text: str) -> bool:
    """Whether the request's grammar allows an answer that begins so."""
    ids = tokenizer(text)["input_ids"]
    process = asked.options["sampling"].process
    return bool(process.num_allowed([*asked.prompt, *ids], len(ids)) == len(ids))


@pytest.mark.parametrize("added", [(), ("<tool_call>", "</tool_call>")])
def test_calls_of_strict_tools_match_their_schema(added: tuple[str, ...]) -> None:
    """The model, which is random, begins a call; what follows has to be one."""
    with chatting(speculator(added=added)) as chat:
        codec = chat.live.service.parser.codec
        start = codec.tokenizer("<tool_call>")["input_ids"]
        body = {"messages": [turn("user")], "tools": [STRICT, NOW]}
        parser = chat.live.service.parser
        for fields in ({}, {"tool_choice": "auto"}, {"parallel_tool_calls": False}):
            (asked,) = parser.chat(ChatRequest.model_validate(body | fields))
            fits = partial(_fits, asked, codec.tokenizer)
            assert fits("words, {and} [more]")
            assert fits(CALL)
            assert fits(f"So: {CALL} and more")
            assert fits('<tool_call>{"name": "now", "arguments": {"any": []}}')
            assert not fits('<tool_call>{"name": "add", "arguments": {"a": "1"')
            assert not fits('<tool_call>{"name": "add", "arguments": {}')
            assert not fits('<tool_call>{"name": "sub"')
            assert fits(CALL + CALL) == (fields != {"parallel_tool_calls": False} or not added)
        assert len(start) == (1 if added else 11)
        (asked,) = parser.chat(ChatRequest.model_validate(body | {"tools": [ADD, NOW]}))
        assert asked.options["sampling"].process is None
        bias = {str(start[0]): 100} if added else None
        for seed in range(3):
            said = chat.ask(
                **{**body, "logit_bias": bias}, seed=seed, temperature=1, max_tokens=200
            )
            assert said.status == 200


@pytest.mark.parametrize("template", [TEMPLATE, TEMPLATE.replace("<tool_call>", "call:")])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_form_and_tools(template: str, temperature: float) -> None:
    """As agents with a typed result ask: a call, or an answer of the form."""
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}},
    }
    with chatting(speculator(template)) as chat:
        for seed in range(4):
            choice = chat.ask(
                tools=[STRICT], response_format=form, max_tokens=300, seed=seed,
                temperature=temperature, logit_bias={str(ord("<") - 33): -50 * (seed % 2)},
            ).json["choices"][0]  # fmt: skip
            for call in choice["message"].get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"])["a"], int)
            if choice["message"]["content"] and choice["finish_reason"] == "stop":
                assert json.loads(choice["message"]["content"]) == {"n": 7}


def test_every_field_of_openai_is_honoured_ignored_or_refused_by_name(chat: Chat) -> None:
    """A new release's new field fails here until it is decided on."""
    known = {"moderation": {"model": "x"}, "prompt_cache_options": {}}
    for params, model, path in (
        (chat_params.CompletionCreateParamsBase, ChatRequest, "/v1/chat/completions"),
        (completion_params.CompletionCreateParamsBase, CompletionRequest, "/v1/completions"),
    ):
        for name in get_type_hints(params):
            if name in model.model_fields:
                continue
            base = {"messages": [turn("user")], "prompt": "abc"}
            base.pop("prompt" if path.startswith("/v1/chat") else "messages")
            said = chat.live.ask(path, {**base, "max_tokens": 1, name: known.get(name, "x")})
            assert said.status == 200 or name in said.error["message"], name


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True, "top_logprobs": 1},
        {"tools": [ADD], "structured_outputs": {"choice": [CALL]}, "max_tokens": 200},
        {"n": 2, "temperature": 1},
    ],
)
def test_responses_are_openais(chat: Chat, fields: dict[str, Any]) -> None:
    """They have the types that openai's client declares, whose own reading is lenient."""
    whole = chat.ask(**fields).json
    events = chat.ask(**fields, stream=True, stream_options={"include_usage": True}).events
    kinds: list[tuple[type[BaseModel], Any]] = [(ChatCompletion, whole)]
    kinds += [(ChatCompletionChunk, event) for event in events]
    assert len(kinds) > 2
    for kind, body in kinds:
        made = kind.model_validate(body, strict=True)
        left_out = [name for name in kind.model_fields if name not in body]
        assert [getattr(made, name) for name in left_out] == [None] * len(left_out)


def test_a_checkpoints_sampling_is_the_default(caplog: pytest.LogCaptureFixture) -> None:
    made = speculator()
    config = made.target.module.generation_config
    config.update(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1, do_sample=True)

    def sampling(source: str, **fields: Any) -> SamplingParams:
        service = make_service(made, ServerSettings(generation_config=source))
        body = ChatRequest.model_validate({"messages": [turn("user")], **fields})
        found: SamplingParams = service.parser.chat(body)[0].options["sampling"]
        return found

    with caplog.at_level("INFO", logger="draftwise"):
        found = sampling("auto")
    assert (found.temperature, found.top_p, found.top_k) == (0.6, 0.9, 20)
    assert (found.repetition_penalty, found.min_p) == (1.1, 0)
    assert "temperature 0.6, top_p 0.9, top_k 20" in caplog.text
    found = sampling("auto", temperature=1, top_p=1.0, top_k=-1, repetition_penalty=1)
    assert (found.temperature, found.top_p, found.top_k) == (1, 1, 0)
    assert sampling("auto", temperature=0, top_p=None).top_p == 0.9
    assert sampling("none") == SamplingParams(temperature=1.0)
    config.update(temperature=-3.0)
    with pytest.raises(DraftwiseError, match=r"generation_config.json: temperature is -3.0.*none"):
        sampling("auto")


def test_a_prediction_is_a_draft_and_is_counted(chat: Chat) -> None:
    form = {"max_tokens": 60, "structured_outputs": {"regex": "[a-z ]{50}"}}
    told = chat.ask(**form).json
    text = told["choices"][0]["message"]["content"]
    num = len(chat.tokenizer(text)["input_ids"])
    for content, kept, others in (
        (text, num, 0),
        ([{"type": "text", "text": text[:-5]}, {"type": "text", "text": "#####"}], num - 5, 5),
        ("#" * 8, 0, 8),
    ):
        predicted = {"type": "content", "content": content}
        fields = {**form, "prediction": predicted, "draftwise": {"private": True}}
        said = chat.ask(**fields).json
        assert said["choices"][0]["message"]["content"] == text
        details = {"accepted_prediction_tokens": kept, "rejected_prediction_tokens": others}
        assert said["usage"]["completion_tokens_details"] == details
        events = chat.ask(**fields, stream=True, stream_options={"include_usage": True}).events
        assert events[-1]["usage"] == said["usage"]
        assert CompletionUsage.model_validate(said["usage"], strict=True)
    assert "completion_tokens_details" not in told["usage"]
    for wrong in ({"type": "content"}, {"type": "x", "content": "a"}, {"content": 5}, "text"):
        assert "prediction" in chat.ask(prediction=wrong).error["message"]


def test_tokens_of_a_prediction_that_an_answer_has() -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    for answer, num in (
        (text, 12), ([], 0), (text[:5], 5), ([7, *text], 12), (text[3:], 9), ([7] * 9, 0),
        ([*text[:4], 7, 7, *text[6:]], 10), ([*text[:6], *text[8:]], 10), (text * 2, 12),
        ([*text[:2], 7, *text[2:]], 12),
    ):  # fmt: skip
        assert num_predicted(text, answer) == num, answer


def test_tokens_of_a_prediction_in_a_text_that_repeats_itself() -> None:
    """The lines after a difference occur again later, where the answer does not go on."""
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] * 6
    predicted = list(text)
    predicted[14] = predicted[40] = 7
    assert num_predicted(predicted, text) == len(text) - 2
    assert num_predicted(text, text[:5] + text[24:]) == len(text) - 19
