"""Tool calls in a growing text: any pieces give the same content and calls."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from draftwise.serve.calls import CallParser, calls_schema
from draftwise.serve.schemas import Tool
from serve.test_clients import CALL, TEXTS


def read(pieces: list[str], most: int | None = None) -> tuple[str, list[str]]:
    made, content, calls = CallParser({"add": None, "now": None}, most), "", list[str]()
    for number, piece in enumerate(pieces):
        shown, new = made.push(piece, is_last=number == len(pieces) - 1)
        content, calls = content + shown, calls + [call["function"]["arguments"] for call in new]
    return content, calls


@pytest.mark.parametrize("text", [text for text, _, _ in TEXTS])
def test_every_split_of_a_stream_reads_the_same(text: str) -> None:
    whole = read([text])
    assert read(list(text)) == whole
    for at in range(len(text)):
        assert read([text[:at], text[at:]]) == whole
    rng = random.Random(0)
    for _ in range(20):
        cuts = sorted(rng.choices(range(len(text) + 1), k=5))
        assert read([text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]) == whole


def test_random_texts_of_marks_read_the_same_in_any_pieces() -> None:
    rng = random.Random(1)
    marks = [
        "<tool_call>",
        "</tool_call>",
        CALL,
        '{"name": "add"',
        "}",
        '"',
        "\\",
        " ",
        "[",
        "a<",
        ";",
    ]
    for _ in range(300):
        text = "".join(rng.choices(marks, k=8))
        whole = read([text])
        assert read(list(text)) == whole
        cut = rng.randrange(len(text))
        assert read([text[:cut], text[cut:]]) == whole
        num_calls = len(whole[1])
        assert len(whole[0]) <= len(text)
        assert num_calls or whole[0] == text, "what is no call is content"


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "number"}, "5", 5),
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "string"}, " two\n\nlines ", " two\n\nlines "),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "number"]}, "5", 5),
        ({"type": ["string", "integer"]}, "1.5", "1.5"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "true", "true"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "array"}, '[1, "a"]', [1, "a"]),
        ({"type": "object"}, '{"b": {}}', {"b": {}}),
        ({"type": "object"}, "not JSON", "not JSON"),
        ({}, "[1]", [1]),
        ({}, "words", "words"),
        ({}, "NaN", "NaN"),
        (None, "5", 5),
        (True, "5", 5),
        ({"type": 5, "anyOf": 5}, "5", 5),
        ({"type": "string"}, "", ""),
    ],
)
def test_arguments_in_tags_have_the_types_of_their_schema(
    schema: Any, written: str, value: Any
) -> None:
    """As Qwen3-Coder writes calls. A tool without a schema, and an argument that it lacks: JSON."""
    tools = {"add": None if schema is None else {"type": "object", "properties": {"a": schema}}}
    text = f"<function=add>\n<parameter=a>\n{written}\n</parameter>\n"
    text = f"<tool_call>\n{text}<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>"
    for pieces in ([text], list(text)):
        made, calls = CallParser(tools), []
        for piece in pieces:
            calls += made.push(piece)[1]
        (call,) = calls
        assert json.loads(call["function"]["arguments"]) == {"a": value, "other": 7}
        assert made.push("", is_last=True) == ("", [])


def test_content_is_shown_before_the_answer_ends() -> None:
    made = CallParser({"add": None})
    assert made.push("So ")[0] == "So "
    assert made.push("a <to")[0] == "a "
    assert made.push("ld")[0] == "<told"
    assert made.push(CALL[:-20]) == ("", [])
    _, (call,) = made.push(CALL[-20:])
    assert call["function"]["arguments"] == '{"a": 1}'


def test_long_calls_are_read_in_linear_time() -> None:
    """100,000 pieces of one argument, and 30,000 tags that begin no call."""
    argument = '{"a": "' + "x{<" * 100_000 + '"}'
    pieces = [CALL[:39]]
    pieces += [argument[i : i + 3] for i in range(0, len(argument), 3)] + ["}</tool_call>"]
    assert json.loads(read(pieces)[1][0])["a"] == "x{<" * 100_000
    tagged = "<tool_call><function=add><parameter=a>"
    value = "</function><" * 30_000
    pieces = [tagged, *(value[i : i + 7] for i in range(0, len(value), 7))]
    pieces.append("</parameter></function></tool_call>")
    assert json.loads(read(pieces)[1][0])["a"] == value
    for broken in (
        "<tool_call>", "<tool_call>{", '<tool_call>{"', '<tool_call>{"a":"', "<parameter=", tagged,
        "<tool_call><function=", tagged + "</function>",
    ):  # fmt: skip
        text = broken * 3_000
        assert read([text]) == (text, [])


def test_forced_calls_have_a_schema() -> None:
    nested = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "me": {"$ref": "#"}},
        "$defs": {"A": {"type": "integer"}},
    }
    tools = [
        Tool.model_validate({"type": "function", "function": {"name": n, "parameters": nested}})
        for n in ("f", "g")
    ]
    two = calls_schema(tools)
    assert [one["properties"]["name"] for one in two["anyOf"]] == [{"const": "f"}, {"const": "g"}]
    properties = two["$defs"]["tool1"]["properties"]
    assert properties["a"] == {"$ref": "#/$defs/tool1/$defs/A"}
    assert properties["me"] == {"$ref": "#/$defs/tool1"}
    one = calls_schema(tools[1:])
    assert one["properties"]["name"] == {"const": "g"}
