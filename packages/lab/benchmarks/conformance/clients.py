"""One client library against a live scripted server: tools, structured output, streaming.

    python clients.py NAME URL

Each runs a conversation of at least three turns with its own means, sends back what it got, and
asks once whole and once as a stream. Prints a line of JSON per check. Needs the library alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

ASK, RESULT, TOLD = "What is 2 plus 3?", "5", "The tool says 5."
OTHER = "Tell me more."


class City(BaseModel):
    """A random model ends no number and no text: there are few of each, and no others."""

    model_config = ConfigDict(extra="forbid")
    name: Literal["Oslo", "Rome"]
    millions: Literal[1, 3]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}

Checks = Iterator[tuple[str, Any, Any]]


def openai_python(url: str) -> Checks:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    create = client.chat.completions.create
    messages: list[Any] = [{"role": "user", "content": ASK}]
    strict = openai.pydantic_function_tool(City)
    tools: list[Any] = [TOOL, strict]
    common: dict[str, Any] = {"model": "local", "tools": tools, "parallel_tool_calls": False}
    first = create(messages=messages, **common).choices[0].message
    (call,) = first.tool_calls or ()
    yield "call", json.loads(call.function.arguments), {"a": 2, "b": 3}
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    second = create(messages=messages, **common).choices[0].message
    yield "result", second.content, TOLD
    messages += [second, {"role": "user", "content": OTHER}]
    third = create(messages=messages, **common).choices[0].message
    events = create(messages=messages, stream=True, **common)
    text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    yield "stream is whole", text, third.content
    messages += [third.model_dump(), {"role": "user", "content": ASK}]
    with client.chat.completions.stream(
        messages=messages, stream_options={"include_usage": True}, **common
    ) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or ()
    yield "streamed call", json.loads(call.function.arguments), {"a": 2, "b": 3}
    yield "usage", bool(final.usage and final.usage.completion_tokens), True
    messages += [final.choices[0].message.model_dump()]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    made = client.chat.completions.parse(
        model="local", messages=messages, response_format=City, temperature=0
    )
    yield "parse", isinstance(made.choices[0].message.parsed, City), True
    messages += [made.choices[0].message, {"role": "user", "content": OTHER}]
    after = create(messages=messages, model="local").choices[0].message
    yield "after parse", after.role, "assistant"
    calls = client.chat.completions.parse(
        model="local", messages=messages, tools=[strict], tool_choice="required", temperature=0
    )
    (parsed,) = calls.choices[0].message.tool_calls or ()
    yield "parsed call", isinstance(parsed.function.parsed_arguments, City), True


def langchain(url: str) -> Checks:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="local", base_url=f"{url}/v1", api_key="none", max_retries=0, temperature=1e-8
    )
    bound = model.bind_tools([tool(add)])
    messages: list[Any] = [HumanMessage(ASK)]
    first = bound.invoke(messages)
    yield "call", [call["args"] for call in first.tool_calls], [{"a": 2, "b": 3}]
    messages += [first, ToolMessage(RESULT, tool_call_id=first.tool_calls[0]["id"])]
    second = bound.invoke(messages)
    yield "result", second.content, TOLD
    messages += [second, HumanMessage(OTHER)]
    third = bound.invoke(messages)
    streamed = None
    for chunk in bound.stream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    yield "stream is whole", streamed.content, third.content
    messages += [streamed, HumanMessage(ASK)]
    streamed = None
    for chunk in bound.stream(messages):
        streamed = chunk if streamed is None else streamed + chunk
    yield "streamed call", [call["args"] for call in streamed.tool_calls], [{"a": 2, "b": 3}]
    messages += [streamed, ToolMessage(RESULT, tool_call_id=streamed.tool_calls[0]["id"])]
    for method in ("json_schema", "function_calling"):
        made = model.with_structured_output(City, method=method).invoke(messages)
        yield f"structured output, {method}", isinstance(made, City), True
    forced = model.bind_tools([City], tool_choice="any").invoke(messages)
    yield "tool_choice any", [call["name"] for call in forced.tool_calls], ["City"]


def litellm(url: str) -> Checks:
    import litellm

    common = {"model": "openai/local", "api_base": f"{url}/v1", "api_key": "none"}
    messages: list[Any] = [{"role": "user", "content": ASK}]
    first = litellm.completion(messages=messages, tools=[TOOL], **common).choices[0].message
    (call,) = first.tool_calls
    yield "call", json.loads(call.function.arguments), {"a": 2, "b": 3}
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    second = litellm.completion(messages=messages, tools=[TOOL], **common).choices[0].message
    yield "result", second.content, TOLD
    messages += [second.model_dump(), {"role": "user", "content": OTHER}]
    third = litellm.completion(messages=messages, tools=[TOOL], **common).choices[0].message
    chunks = list(litellm.completion(messages=messages, tools=[TOOL], stream=True, **common))
    built = litellm.stream_chunk_builder(chunks, messages=messages)
    yield "stream is whole", built.choices[0].message.content, third.content
    messages += [third, {"role": "user", "content": ASK}]
    chunks = list(litellm.completion(messages=messages, tools=[TOOL], stream=True, **common))
    message = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    arguments = [json.loads(call.function.arguments) for call in message.tool_calls]
    yield "streamed call", arguments, [{"a": 2, "b": 3}]
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
    messages += [message, result]
    made = litellm.completion(messages=messages, response_format=City, temperature=0, **common)
    content = made.choices[0].message.content
    yield "structured output", isinstance(City.model_validate_json(content), City), True


def pydantic_ai(url: str) -> Checks:
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    model = OpenAIChatModel("local", provider=provider)
    agent = Agent(model, instructions="Be brief.", tools=[add])

    async def run() -> list[tuple[str, Any, Any]]:
        found: list[tuple[str, Any, Any]] = []
        first = await agent.run(ASK)
        found.append(("call and result", first.output, TOLD))
        history = first.all_messages()
        second = await agent.run(OTHER, message_history=history)
        async with agent.run_stream(OTHER, message_history=history) as stream:
            text = "".join([piece async for piece in stream.stream_text(delta=True)])
        found.append(("stream is whole", text, second.output))
        async with agent.run_stream(ASK, message_history=second.all_messages()) as stream:
            found.append(("streamed call and result", await stream.get_output(), TOLD))
            history = stream.all_messages()
        for output in (ToolOutput(City), NativeOutput(City)):
            typed: Any = Agent(model, output_type=output, model_settings={"temperature": 0.0})
            made = await typed.run(OTHER, message_history=history)
            found.append(
                (f"structured output, {type(output).__name__}", isinstance(made.output, City), True)
            )
        return found

    yield from asyncio.run(run())


def instructor(url: str) -> Checks:
    import instructor
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": ASK}]
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        own = instructor.from_openai(client, mode=mode)
        made, raw = own.chat.completions.create_with_completion(
            model="local", messages=messages, response_model=City, temperature=0, max_tokens=200
        )
        yield f"{mode.name.lower()}", isinstance(made, City), True
        messages += [raw.choices[0].message.model_dump()]
        if calls := raw.choices[0].message.tool_calls:
            messages += [{"role": "tool", "tool_call_id": calls[0].id, "content": "taken"}]
        messages += [{"role": "user", "content": OTHER}]
    parts = list(
        instructor.from_openai(client, mode=instructor.Mode.TOOLS).chat.completions.create_partial(
            model="local", messages=messages, response_model=City, temperature=0, max_tokens=200
        )
    )
    yield (
        "streamed parts end whole",
        isinstance(City.model_validate(parts[-1].model_dump()), City),
        True,
    )


CLIENTS: dict[str, tuple[str, Callable[[str], Checks]]] = {
    "openai-python": ("openai", openai_python),
    "langchain": ("langchain-openai", langchain),
    "litellm": ("litellm", litellm),
    "pydantic-ai": ("pydantic-ai-slim", pydantic_ai),
    "instructor": ("instructor", instructor),
}


def main(name: str, url: str) -> None:
    package, checks = CLIENTS[name]
    print(json.dumps({"version": version(package)}), flush=True)
    try:
        for what, seen, expected in checks(url):
            line = {"check": what, "ok": seen == expected}
            print(json.dumps(line | ({} if line["ok"] else {"seen": repr(seen)[:300]})), flush=True)
    except Exception as error:
        traceback.print_exc()
        seen = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps({"check": "all", "ok": False, "seen": seen}))


if __name__ == "__main__":
    main(*sys.argv[1:])
