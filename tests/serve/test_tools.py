"""Tool calls in a growing text: any pieces give the same content and calls."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from draftwise.serve import CallParser, Tool, calls_schema
from serve.test_clients import CALL, TEXTS


def read(pieces: list[str], most: int | None = None) -> tuple[str, list[str]]:
    made, content, calls = CallParser(["add", "now"], most), "", list[str]()
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


def test_content_is_shown_before_the_answer_ends() -> None:
    made = CallParser(["add"])
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
    for broken in ("<tool_call>", "<tool_call>{", '<tool_call>{"', '<tool_call>{"a":"'):
        text = broken * 10_000
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
