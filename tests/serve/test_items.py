"""``/v1/responses``, as openai's client and types have it, against chats of the same words."""

from __future__ import annotations

import json
from typing import Any, Literal, get_type_hints

import openai
import pytest
from openai.types import responses as types
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from pydantic import BaseModel, TypeAdapter

from draftwise.serve.items import ResponsesRequest
from serve.chatml import Chat
from serve.fake import Fake
from serve.live import Said, fake_service, serving
from serve.test_clients import ADD, CALL, NOW, TEXTS, called, turn

PATH = "/v1/responses"
TOOL: dict[str, Any] = {"type": "function", **ADD["function"]}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def body(given: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"input": given, "max_output_tokens": 4, "temperature": 0, **fields}


def prompt(chat: Chat, given: Any, **fields: Any) -> str:
    asked = ResponsesRequest.model_validate(body(given, **fields))
    return str(chat.tokenizer.decode(chat.live.service.parser.chat(asked)[0].prompt))


def told(chat: Chat, text: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole response whose text is given, and the events of its stream."""
    asked = body(structured_outputs={"choice": [text]}, **{"max_output_tokens": 999, **fields})
    said = chat.live.ask(PATH, asked)
    assert said.status == 200, said.text
    return said.json, events_of(chat.live.ask(PATH, {**asked, "stream": True}))


def events_of(said: Said) -> list[dict[str, Any]]:
    """The events of a stream, each under its name."""
    pairs = [event.split("\n", 1) for event in said.text.removesuffix("\n\n").split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {event['type']}" for event in found]
    return found


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def strictly(kind: type[BaseModel], given: Any) -> None:
    """It has the types that openai declares, whose own reading is lenient."""
    made = kind.model_validate(given, strict=True)
    left_out = [name for name in kind.model_fields if name not in given]
    assert [getattr(made, name) for name in left_out] == [None] * len(left_out)


def test_the_answer_is_the_chats(chat: Chat, client: openai.OpenAI) -> None:
    form = {"structured_outputs": {"regex": "[a-z ]{20}"}}
    said = chat.ask([turn("system", "Be brief."), turn("user", "Hi")], max_tokens=99, **form)
    expected, usage = said.json["choices"][0]["message"]["content"], said.json["usage"]
    asked: Any = {
        "model": "tiny", "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 99,
        "temperature": 0, "extra_body": form,
    }  # fmt: skip
    made = client.responses.create(**asked)
    assert made.output_text == expected
    assert made.usage is not None
    counts = made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens
    assert counts == tuple(usage[f"{name}_tokens"] for name in ("prompt", "completion", "total"))
    with client.responses.stream(**asked) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(texts) == expected
        assert stream.get_final_response().output_text == expected
    assert made.model_dump()["draftwise"]["num_rounds"] > 0


@pytest.mark.parametrize(("text", "content", "arguments"), TEXTS)
def test_a_stream_and_the_whole_are_one(
    chat: Chat, text: str, content: str | None, arguments: list[str]
) -> None:
    if content is None and not arguments:
        content = text
    whole, events = told(chat, text, tools=[TOOL, {"type": "function", **NOW["function"]}])
    strictly(Response, whole)
    messages = [item for item in whole["output"] if item["type"] == "message"]
    assert [item["content"][0]["text"] for item in messages] == (
        [] if content is None else [content]
    )
    calls = whole["output"][len(messages) :]
    assert [call["arguments"] for call in calls] == arguments
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(EVENTS.validate_python(event, strict=True) for event in events)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == whole["status"] == "completed"
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == (content or "")
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_an_answer_that_the_limit_ends(chat: Chat) -> None:
    for text, num in (("words and more", 5), (CALL, len(CALL) - 20), (CALL * 2, len(CALL) + 13)):
        whole, events = told(chat, text, tools=[TOOL], max_output_tokens=num)
        strictly(Response, whole)
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [whole["status"], events[-1]["type"]] == ["incomplete", "response.incomplete"]
        assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])


def test_turns_with_calls_read_as_in_a_chat(chat: Chat, client: openai.OpenAI) -> None:
    """An output is sent back as it came, and the result of its call."""
    asked: Any = {"model": "tiny", "max_output_tokens": 200, "tools": [TOOL]}
    text = {"structured_outputs": {"choice": ["So: " + CALL]}}
    first: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}]
    made = client.responses.create(**asked, input=first, extra_body=text)
    message, call = made.output
    assert isinstance(call, types.ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("add", '{"a": 1}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "2"}
    given = [*first, message.model_dump(), call.model_dump(), result]
    messages = [turn("user", "q"), turn("assistant", "So: ", tool_calls=[called()])]
    messages.append(turn("tool", "2", tool_call_id="c1"))
    assert prompt(chat, given, tools=[TOOL]) == chat.prompt(messages, tools=[ADD])
    assert client.responses.create(**asked, input=given).usage is not None
    two = [first[0], call.model_dump(), call.model_dump(), result]
    messages = [turn("user", "q"), turn("assistant", None, tool_calls=[called()] * 2), messages[-1]]
    assert prompt(chat, two, tools=[TOOL]) == chat.prompt(messages, tools=[ADD])


def test_forms(client: openai.OpenAI, chat: Chat) -> None:
    class Found(BaseModel):
        n: Literal[7]

    made = client.responses.parse(model="tiny", input="Hi", text_format=Found)
    assert made.output_parsed == Found(n=7)
    choice = {"type": "function", "name": "now"}
    now = {"type": "function", "name": "now", "parameters": {"const": {}}}
    for forced in ("required", choice):
        said = chat.live.ask(PATH, body(tools=[now], tool_choice=forced, max_output_tokens=99)).json
        strictly(Response, said)
        assert [(item["name"], item["arguments"]) for item in said["output"]] == [("now", "{}")]
        assert said["tool_choice"] == forced


def test_logprobs(chat: Chat) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole, events = told(chat, "words", **fields)
    strictly(Response, whole)
    found = whole["output"][0]["content"][0]["logprobs"]
    assert [len(one["top_logprobs"]) for one in found] == [2] * whole["usage"]["output_tokens"]
    assert "".join(one["token"] for one in found).startswith("words")
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    sent = [one for part in deltas for one in part]
    assert found[: len(sent)] == sent
    assert len(sent) >= len("words"), "the token that ends the answer has no text"
    (done,) = [e["logprobs"] for e in events if e["type"] == "response.output_text.done"]
    assert done == found
    assert all(EVENTS.validate_python(event, strict=True) for event in events)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True}, {"metadata": {"a": "b"}}, {"truncation": "disabled"},
        {"max_tool_calls": 3},
        {"include": ["reasoning.encrypted_content"]}, {"background": False}, {"user": "u"},
        {"stream_options": {"include_obfuscation": False}}, {"text": {"verbosity": "low"}},
        {"text": {"format": {"type": "text"}}}, {"previous_response_id": None}, {"tools": []},
        {"reasoning": {"effort": None, "summary": "auto"}}, {"prompt_cache_key": "k"},
    ],
)  # fmt: skip
def test_what_changes_nothing(chat: Chat, fields: dict[str, Any]) -> None:
    said, plain = (chat.live.ask(PATH, body(**more)) for more in (fields, {}))
    assert said.status == 200, said.text
    assert without_ids(said.json["output"]) == without_ids(plain.json["output"])


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: no response is kept"),
        ({"conversation": "conv_1"}, "conversation: no response is kept"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"messages": [turn("user")]}, "messages"),
        ({"n": 2}, "n"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "grammar"}}}, "response_format"),
        ({"text": 5}, "text"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "reasoning"),
        ({"input": [turn("user", [{"type": "input_image", "image_url": "x"}])]}, "image_url"),
        ({"input": [turn("assistant", tool_calls=3), {"type": "function_call"}]}, "input"),
        ({"max_output_tokens": 2.5}, "max_output_tokens"),
    ],
)
def test_what_is_refused_by_name(chat: Chat, fields: dict[str, Any], name: str) -> None:
    said = chat.live.ask(PATH, body(**fields))
    assert said.status == 400, said.text
    assert name in said.error["message"]


def test_every_field_of_openai_is_honoured_ignored_or_refused_by_name(chat: Chat) -> None:
    """A new release's new field fails here until it is decided on."""
    known = {"moderation": {"model": "x"}, "prompt_cache_options": {}}
    own = {field.alias or name for name, field in ResponsesRequest.model_fields.items()}
    for name in get_type_hints(response_create_params.ResponseCreateParamsBase):
        if name not in own:
            said = chat.live.ask(PATH, body(**{name: known.get(name, "x")}))
            assert said.status == 200 or name in said.error["message"], name


def test_an_error_in_a_stream_is_raised_by_the_client() -> None:
    def fail(step: int) -> None:
        if step > 8:
            raise RuntimeError("a bug")

    with (
        serving(fake_service(Fake(fails=fail, pace_s=0.05))) as live,
        openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        events = client.responses.create(input="abc", max_output_tokens=50, stream=True)
        assert next(iter(events)).type == "response.created"
        with pytest.raises(openai.APIError):
            list(events)
        live.service.worker.engine.num_steps = 0
        said = live.ask(PATH, {"input": "abc", "stream": True})
        (error,) = [event for event in events_of(said) if event["type"] == "error"]
        assert types.ResponseErrorEvent.model_validate(error, strict=True)
        assert error["error"]["message"] == error["message"]
