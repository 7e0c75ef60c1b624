"""Tool calls: where they begin, their content, and text that is not a call."""

from __future__ import annotations

import json

import pytest

from draftwise.serve import NamedTool, Tool, ToolText, calls_schema, read_calls

CALL = '{"name": "add", "arguments": {"a": 1}}'


def run(text: str, size: int) -> tuple[str, list[dict[str, object]]]:
    """The content and the calls of a text that arrives in pieces of ``size`` characters."""
    made = ToolText(["add", "mul"])
    content = "".join(made.push(text[i : i + size]) for i in range(0, len(text), size))
    rest, calls = made.finish()
    return content + rest, [call["function"] for call in calls]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("just words", "just words", []),
        (f"<tool_call>\n{CALL}\n</tool_call>", "", ["add"]),
        (f"So: <tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "So: ", ["add"] * 2),
        (CALL, "", ["add"]),
        (f"[{CALL}]", "", ["add"]),
        (CALL.replace("arguments", "parameters"), "", ["add"]),
        ('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', []),
        ('{"name": ["add"]}', '{"name": ["add"]}', []),
        ("{not json}", "{not json}", []),
        ("<tool_call>{not json}</tool_call>", "<tool_call>{not json}</tool_call>", []),
        ("a < b and <tool", "a < b and <tool", []),
        ("", "", []),
    ],
)
def test_content_and_calls(text: str, content: str, names: list[str], size: int) -> None:
    found, calls = run(text, size)
    assert found == content
    assert [call["name"] for call in calls] == names
    assert all(json.loads(str(call["arguments"])) == {"a": 1} for call in calls)


def test_numbers_of_calls_differ() -> None:
    calls = read_calls(f"[{CALL}, {CALL}]", {"add"})
    assert len({call["id"] for call in calls}) == 2


def test_forced_calls_have_a_schema() -> None:
    tools = [Tool.model_validate({"type": "function", "function": {"name": n}}) for n in ("f", "g")]
    assert len(calls_schema(tools, "required")["anyOf"]) == 2
    named = NamedTool.model_validate({"type": "function", "function": {"name": "g"}})
    assert calls_schema(tools, named)["properties"]["name"] == {"const": "g"}
