"""Tool calls: the grammar of calls, and a parser that separates them from content.

Three forms are read: ``<tool_call>{...}</tool_call>`` (Hermes, Qwen, SmolLM), the same with
``<function=NAME><parameter=KEY>VALUE</parameter></function>`` inside (Qwen3-Coder, Qwen3.5), and
bare JSON at the start of an answer, one object or a list (Llama 3, and what ``tool_choice``
forces). In JSON a call is ``{"name": ..., "arguments": {...}}``, with ``parameters`` as another
name of its arguments.

transformers' ``ResponseParser`` reads more forms, from a ``response_template`` that few tokenizers
have. It does not serve here: it ends a call at the first ``</tool_call>``, also inside an argument,
and raises for an answer that begins a call and does not end it, whose text is content here.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from draftwise.serve.constraint import json_grammar, rootless, tagged_grammar
from draftwise.serve.schemas import StructuredOutputs, Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_constant)  # strings may have line breaks
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_CLOSED = re.compile(rf"({_FUNCTION_END})\s*{CLOSE}")
_NAMED = re.compile(r"\s*<function=([^>\n]*)>\s*")
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_OUTSIDE, _INSIDE = re.compile(r'["{}\[\]<]'), re.compile(r'["\\]')  # of a string in JSON


def calls_schema(
    tools: Sequence[Tool], answer: Mapping[str, Any] | None = None, *, only_strict: bool = False
) -> dict[str, Any]:
    """The JSON schema of one call of these tools.

    answer: the schema of an answer that calls nothing, as another possibility. only_strict: a tool
    that is not ``strict`` takes any object as its arguments.
    """
    parts = {f"tool{n}": tool.function.parameters for n, tool in enumerate(tools)}
    if only_strict:
        parts |= {f"tool{n}": None for n, tool in enumerate(tools) if not tool.function.strict}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": {"$ref": f"#/$defs/tool{n}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for n, tool in enumerate(tools)
    ]
    if answer is not None:
        parts["answer"] = dict(answer)
        calls.append({"$ref": "#/$defs/answer"})
    defs = {
        name: _moved(rootless(part or {"type": "object"}), name) for name, part in parts.items()
    }
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": defs}


def _moved(schema: Any, name: str) -> Any:
    """A schema that stands under ``$defs``: its references to itself begin there."""
    if isinstance(schema, list):
        return [_moved(one, name) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(one, name) for key, one in schema.items()}
    if isinstance(ref := moved.get("$ref"), str) and ref.startswith("#"):
        moved["$ref"] = f"#/$defs/{name}{ref[1:]}"
    return moved


def free_grammar(
    tools: Sequence[Tool], form: StructuredOutputs | None, tags: CallTags, most: int | None
) -> str | None:
    """The grammar of an answer that may call tools, or say something; None = no grammar.

    form: of an answer that calls nothing; only JSON schemas can be told from calls. tags: in which
    the model writes calls. most: maximum number of calls.
    """
    schema = None if form is None else form.schema_of_answer
    if form is not None and schema is None:
        return None
    if tags is CallTags.NONE:
        return (
            None if schema is None else json_grammar(calls_schema(tools, schema, only_strict=True))
        )
    if schema is None and not any(tool.function.strict for tool in tools):
        return None
    calls, are_tokens = calls_schema(tools, only_strict=True), tags is CallTags.TOKENS
    return tagged_grammar((OPEN, CLOSE), calls, schema, most, are_tokens)


class CallTags(Enum):
    """How a model writes the tags around a call: not at all, as text, or as two tokens."""

    NONE, TEXT, TOKENS = range(3)

    @classmethod
    def of(cls, tokenizer: Any) -> CallTags:
        """Found in the chat template, which shows the model how to call."""
        template = str(tokenizer.chat_template)
        if OPEN not in template or "<function=" in template:  # calls that are not JSON
            return cls.NONE
        if OPEN in tokenizer.all_special_tokens:  # decoded to nothing
            return cls.NONE
        return cls.TOKENS if OPEN in tokenizer.get_added_vocab() else cls.TEXT


class CallParser:
    """Separates content from calls in a growing answer.

    tools: the schemas of their arguments, by name. most: calls reported at most. Whatever pieces an
    answer comes in, its content and calls are the same: a text that may become a call is held back
    until it is one. What turns out to be none is content. State: the text that is held back, and
    what it may become.
    """

    def __init__(
        self, tools: Mapping[str, Mapping[str, Any] | None], most: int | None = None
    ) -> None:
        self._tools, self._most = tools, most
        self._text = ""
        self._read = self._read_gap
        self._is_last = False
        self._num_calls, self._has_called = 0, False
        self._between = " \t\r\n"  # what may stand between two calls without being content
        self._start = self._place = self._depth = 0  # of the JSON text: where it starts; is read to
        self._is_string = False
        self.is_cut = False  # whether the answer ended inside a call

    def push(self, piece: str, is_last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Add a piece of text; return new content and new calls, in OpenAI's form."""
        self._text += piece
        self._is_last = is_last
        content, calls = "", list[dict[str, Any]]()
        while (found := self._read()) is not None:
            content += found[0]
            calls += found[1]
        room = len(calls) if self._most is None else max(0, self._most - self._num_calls)
        self._num_calls += len(calls)
        return content, calls[:room]

    def _take(self, num: int) -> str:
        taken, self._text = self._text[:num], self._text[num:]
        return taken

    def _read_gap(self) -> tuple[str, list[Any]] | None:
        """At the start of the answer, or after a call."""
        body = self._text.lstrip(self._between)
        begin = len(self._text) - len(body)
        if not body or (OPEN.startswith(body) and body != OPEN):
            if not self._is_last:
                return None
            text = self._take(len(self._text))
            return (body if self._has_called else text, []) if text else None
        if body.startswith(OPEN):
            return self._open(begin + len(OPEN))
        if body[0] in "{[":
            return self._open(begin)
        self._read = self._read_content
        return "", []

    def _read_content(self) -> tuple[str, list[Any]] | None:
        if (at := self._text.find(OPEN)) >= 0:
            shown = self._take(at)
            return shown, self._open(len(OPEN))[1]
        held = (n for n in range(len(OPEN) - 1, 0, -1) if self._text.endswith(OPEN[:n]))
        num = len(self._text) - (0 if self._is_last else next(held, 0))
        return (self._take(num), []) if num else None

    def _open(self, start: int) -> tuple[str, list[Any]]:
        self._read = self._read_json
        self._start = self._place = start
        self._depth, self._is_string = 0, False
        return "", []

    def _read_json(self) -> tuple[str, list[Any]] | None:
        """Inside of what may be a call; the text up to ``start`` is a tag, or blank."""
        is_tagged = self._text[: self._start].endswith(OPEN)
        body = self._text[self._start : self._start + 99].lstrip() if is_tagged else ""
        if body and _FUNCTION.startswith(body[: len(_FUNCTION)]):
            end = self._end_of_function()
        else:
            end = self._end_of_json()
        if end is None and not self._is_last:
            return None
        calls = [] if end is None else self._calls(end)
        if calls:
            self._has_called = True
            self._take(end or 0)
            self._between = " \t\r\n" if is_tagged else " \t\r\n;"
            self._read = self._read_close if is_tagged else self._read_gap
            return "", calls
        self.is_cut = self.is_cut or end is None
        self._read = self._read_content
        return self._take(self._start if is_tagged else end or len(self._text)), []

    def _read_close(self) -> tuple[str, list[Any]] | None:
        body = self._text.lstrip()
        if not body.startswith(CLOSE) and CLOSE.startswith(body) and not self._is_last:
            return None
        if body.startswith(CLOSE):
            self._take(len(self._text) - len(body) + len(CLOSE))
        elif CLOSE.startswith(body):
            self._take(len(self._text))
        self._read = self._read_gap
        return "", []

    def _end_of_json(self) -> int | None:
        """The end of the JSON value, or of what shows that it is none; None = it goes on.

        Each character is read once, however small the pieces are.
        """
        text = self._text
        if not self._depth:
            self._place = len(text) - len(text[self._start :].lstrip())
            if self._place == len(text):
                return None
            if text[self._place] not in "{[":
                return self._place
        while found := (_INSIDE if self._is_string else _OUTSIDE).search(text, self._place):
            mark, self._place = found[0], found.end()
            if mark == "\\":
                if self._place == len(text):
                    self._place -= 1
                    return None
                self._place += 1
            elif mark == '"':
                self._is_string = not self._is_string
            elif mark == "<":
                return found.start()
            else:
                self._depth += 1 if mark in "{[" else -1
                if not self._depth:
                    return self._place
        self._place = len(text)
        return None

    def _end_of_function(self) -> int | None:
        """The end of ``</function>`` before ``</tool_call>`` or the answer's end; None = not yet.

        A value may have the first of the two inside.
        """
        if found := _CLOSED.search(self._text, self._place):
            return found.end(1)
        at = self._text.rfind(_FUNCTION_END, self._place)
        end = at + len(_FUNCTION_END)
        may_end = at >= 0 and CLOSE.startswith(self._text[end:].lstrip())
        if self._is_last:
            return end if may_end else None
        self._place = at if may_end else max(self._place, len(self._text) - len(_FUNCTION_END))
        return None

    def _calls(self, end: int) -> list[dict[str, Any]]:
        """The calls in a text; none if it is not of a call's form, or calls no tool."""
        text = self._text[self._start : end]
        try:
            named = _NAMED.match(text)
            found = self._function(named) if named else _DECODER.decode(text)
            given = [_call(one) for one in (found if isinstance(found, list) else [found])]
        except (ValueError, RecursionError):  # a model may write endless brackets
            return []
        is_known = given and all(call["function"]["name"] in self._tools for call in given)
        return given if is_known else []

    def _function(self, named: re.Match[str]) -> dict[str, Any]:
        """A call in tags, from its name on. ValueError for text between the parameters."""
        name, body = named[1].strip(), named.string[named.end() :].removesuffix(_FUNCTION_END)
        properties = (self._tools.get(name) or {}).get("properties")
        schemas = properties if isinstance(properties, Mapping) else {}
        between, *parts = body.split(_PARAMETER)
        arguments, read = {}, ""
        for part in parts:  # a value may have the tag inside
            read += part if not read else _PARAMETER + part
            if read.rstrip().endswith(_PARAMETER_END):
                key, _, value = read.rstrip().removesuffix(_PARAMETER_END).partition(">")
                value = value.removeprefix("\n").removesuffix("\n")
                arguments[key] = _value(value, schemas.get(key))
                read = ""
        if between or read:
            raise ValueError("a call has parameters alone")
        return {"name": name, "arguments": arguments}


def _call(given: Any) -> dict[str, Any]:
    """A call as OpenAI writes it. ValueError if it is none."""
    if isinstance(given, dict) and isinstance(given.get("function"), dict):
        given = given["function"]
    if not isinstance(given, dict) or not isinstance(name := given.get("name"), str):
        raise ValueError("a call has a name")
    arguments = given.get("arguments", given.get("parameters"))
    if arguments is None or arguments == "":
        arguments = {}
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


_TYPES: Mapping[type, set[str]] = {
    bool: {"boolean"}, type(None): {"null"}, list: {"array"}, dict: {"object"},
    int: {"integer", "number"}, float: {"number"}, str: {"string"},
}  # fmt: skip


def _value(text: str, schema: Any) -> Any:
    """An argument written as bare text: JSON, unless its schema takes strings and not its type."""
    written = text.lower() if text in ("True", "False", "None") else text  # as in Python
    written = "null" if written == "none" else written
    try:
        value = _DECODER.decode(written)
    except (ValueError, RecursionError):
        return text
    types = _types(schema)
    is_text = "string" in types and (isinstance(value, str) or not types & _TYPES[type(value)])
    return text if is_text else value


def _types(schema: Any) -> set[str]:
    """The JSON types that a schema says it takes; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    said = {name: schema.get(name) for name in ("type", "anyOf", "oneOf", "enum")}  # of a client
    kinds, *others, values = (one if isinstance(one, list) else [one] for one in said.values())
    found = {one for one in kinds if isinstance(one, str)}
    if any(isinstance(one, str) for one in values):
        found.add("string")
    return found.union(*(_types(one) for many in others for one in many))
