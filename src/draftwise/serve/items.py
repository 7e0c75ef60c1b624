"""``/v1/responses``: the items of an input are messages of a chat, and an answer is items."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from draftwise.engine.outputs import RequestOutput
from draftwise.serve.responses import ChatReply, Requests
from draftwise.serve.schemas import ChatRequest, Messages, NamedTool, Refused, Whole
from draftwise.serve.service import Service

_LOGPROBS = "message.output_text.logprobs"
_MOST_ITEMS = 10_000


class ResponsesRequest(ChatRequest):
    """Body of ``/v1/responses``: a chat in other words. Its tools are functions."""

    messages: Messages = Field(alias="input", description="A text, or messages, calls and results.")
    max_completion_tokens: Annotated[int, Whole, Field(ge=-1, lt=2**31)] | None = Field(
        default=None, alias="max_output_tokens"
    )
    n: Annotated[int, Whole, Field(ge=1, le=1)] = 1

    @model_validator(mode="before")
    @classmethod
    def _as_chat(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        chat = {key: value for key, value in data.items() if value is not None}
        chat["input"] = _messages(chat.get("input"), chat.pop("instructions", None))
        if isinstance(tools := chat.get("tools"), list):
            chat["tools"] = [_tool(one) for one in tools]
        if isinstance(chat.get("text"), dict):
            chat["response_format"] = _format(chat.pop("text").get("format"))
        include = chat.pop("include", None)
        wants = isinstance(include, list) and _LOGPROBS in include
        chat["logprobs"] = wants or bool(chat.get("top_logprobs"))
        chat.pop("max_tool_calls", None)  # of tools that a server runs itself
        return chat


def _messages(given: Any, instructions: Any) -> Any:
    """Messages of a chat; calls belong to the assistant's message before them."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or len(given) > _MOST_ITEMS:
        return given
    found = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in given:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            last = found[-1] if found and isinstance(found[-1], dict) else {}
            if last.get("role") == "assistant" and isinstance(
                last.setdefault("tool_calls", []), list
            ):
                last["tool_calls"].append(call)
            else:
                found.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            ids = {"tool_call_id": item.get("call_id")}
            found.append({"role": "tool", "content": item.get("output"), **ids})
        elif kind not in (None, "message"):
            raise ValueError(f"input: items of the type {str(kind)[:64]!r} are not served")
        else:
            found.append(item)
    return found


def _tool(given: Any) -> Any:
    """A chat's tool: the function's fields stand in an object of their own."""
    if not isinstance(given, dict) or given.get("type") != "function" or "function" in given:
        return given
    return {"type": "function", "function": {k: v for k, v in given.items() if k != "type"}}


def _format(given: Any) -> Any:
    is_schema = isinstance(given, dict) and given.get("type") == "json_schema"
    return {"type": "json_schema", "json_schema": given} if is_schema else given


class ResponsesReply(ChatReply):
    """The response of ``/v1/responses``: a message, unless the answer only calls; then its calls.

    A stream has the text as it comes, and the calls at the end, so that its items are those of the
    whole response.
    """

    end = b""

    def __init__(self, service: Service, body: ResponsesRequest, requests: Requests) -> None:
        super().__init__(service, body, requests)
        self._body, self._num_events = body, 0
        self._text, self._found, self._calls = "", list[Any](), list[dict[str, Any]]()
        self._num_sent, self._is_open = 0, False  # log-probabilities; the message
        number = uuid.uuid4().hex
        self.id, self._item_id = f"resp_{number}", f"msg_{number}"

    def whole(self) -> dict[str, Any]:
        (output,) = self.outputs
        self._read(output)
        return self._response(self._reason(0, output.finish_reason))

    def events(self, index: int, delta: RequestOutput) -> Iterator[dict[str, Any]]:
        self.add(index, delta)
        if not self._num_events:
            for kind in ("created", "in_progress"):
                yield self._event(kind, response=self._response(None))
        text = self._read(delta)
        if not self._is_open and (text or (delta.finish_reason and not self._calls)):
            self._is_open = True
            yield self._event("output_item.added", 0, item=self._message("in_progress", []))
            yield self._part("content_part.added", part=self._content("", []))
        if text:
            new, self._num_sent = self._found[self._num_sent :], len(self._found)
            yield self._part("output_text.delta", delta=text, logprobs=new)
        if delta.finish_reason:
            yield from self._ends(self._response(self._reason(0, delta.finish_reason)))

    def last_events(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def failed(self, refused: Refused) -> dict[str, Any]:
        error = refused.body["error"]
        event = self._event("", error=error, code=error["code"], message=error["message"])
        return event | {"type": "error", "param": error["param"]}

    def _read(self, part: RequestOutput) -> str:
        """Add a part of the answer; return its text without calls."""
        text, calls = part.text, list[dict[str, Any]]()
        if self._parsers:
            text, calls = self._parsers[0].push(part.text, part.finish_reason is not None)
        self._text += text
        self._nums_calls[0] += len(calls)
        self._calls += [
            {"type": "function_call", "id": f"fc_{uuid.uuid4().hex}", "call_id": call["id"],
             **call["function"], "status": "completed"}
            for call in calls
        ]  # fmt: skip
        if self._has_logprobs:
            self._found += self._logprobs(part)["content"]
        return text

    def _ends(self, response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The last events: each item's end, and the response."""
        for index, item in enumerate(response["output"]):
            if item["type"] == "message":
                (part,) = item["content"]
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._part("output_text.done", **done)
                yield self._part("content_part.done", part=part)
            else:
                begun = item | {"arguments": "", "status": "in_progress"}
                yield self._event("output_item.added", index, item=begun)
                kind, about = "function_call_arguments", {"item_id": item["id"]}
                given, name = item["arguments"], item["name"]
                yield self._event(f"{kind}.delta", index, **about, delta=given)
                yield self._event(f"{kind}.done", index, **about, arguments=given, name=name)
            yield self._event("output_item.done", index, item=item)
        yield self._event(response["status"], response=response)

    def _event(self, kind: str, index: int | None = None, **fields: Any) -> dict[str, Any]:
        place = {} if index is None else {"output_index": index}
        self._num_events += 1
        number = self._num_events - 1
        return {"type": f"response.{kind}", "sequence_number": number, **place, **fields}

    def _part(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, 0, item_id=self._item_id, content_index=0, **fields)

    def _content(self, text: str, logprobs: Sequence[Any]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _message(self, status: str, content: Sequence[Any]) -> dict[str, Any]:
        about = {"type": "message", "id": self._item_id, "role": "assistant", "status": status}
        return {**about, "content": content}

    def _response(self, reason: str | None) -> dict[str, Any]:
        """The response so far. reason: for which it ended, as a chat says it; None = not yet."""
        body, items, counts = self._body, list[dict[str, Any]](), dict[str, Any]()
        is_cut = reason == "length"
        status = "incomplete" if is_cut else "completed" if reason else "in_progress"
        if reason:
            if self._text or not self._calls:
                items = [self._message(status, [self._content(self._text, self._found)])]
            items += self._calls
            counts = self._counts()
            counts["usage"] = _usage(counts["usage"])
        choice: Any = body.tool_choice or "auto"
        if isinstance(choice, NamedTool):
            choice = {"type": "function", "name": choice.function.name}
        return {
            "id": self.id, "object": "response", "created_at": self._created, "status": status,
            "error": None, "model": self._model, "output": items, "previous_response_id": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": None, "max_output_tokens": body.max_completion_tokens,
            "tools": [{"type": "function", **t.function.model_dump()} for t in body.offered],
            "tool_choice": choice, "parallel_tool_calls": body.parallel_tool_calls,
            "temperature": body.temperature, "top_p": body.top_p, "truncation": "disabled",
            "metadata": {}, "store": False, **counts,
        }  # fmt: skip


def _usage(chat: Mapping[str, Any]) -> dict[str, Any]:
    """A chat's usage, by the names of this endpoint."""
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": 0,
            **chat.get("completion_tokens_details", {}),
        },
        "total_tokens": chat["total_tokens"],
    }
