"""Calls of tools in a model's text: what they look like, and where they begin.

Two forms are read: ``<tool_call>{...}</tool_call>`` (Hermes, Qwen, SmolLM) and bare JSON, one
object or a list (Llama 3, and what ``tool_choice`` forces); its arguments stand under
``arguments`` or ``parameters``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from draftwise.serve.wire import NamedTool, Tool

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def calls_schema(tools: Sequence[Tool], choice: Any) -> dict[str, Any]:
    """The JSON schema of a call that ``tool_choice`` forces: of one tool, or of any."""
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    schemas = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


class ToolText:
    """Tells content from calls while an answer grows; what may begin a call waits.

    State: what was shown, and what waits.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)
        self._text, self._num_shown = "", 0

    def push(self, piece: str) -> str:
        """The content that this piece makes certain."""
        self._text += piece
        return self._show(self._certain())

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest of the content, and the calls; what is no valid call stays content."""
        at = self._certain()
        calls = read_calls(self._text[at:], self._names)
        return self._show(at if calls else len(self._text)), calls

    def _certain(self) -> int:
        """Characters that are content for sure."""
        text = self._text
        if text.lstrip()[:1] in ("{", "[", ""):
            return 0
        at = text.find(_OPEN)
        if at >= 0:
            return at
        held = (n for n in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:n]))
        return len(text) - next(held, 0)

    def _show(self, end: int) -> str:
        shown, self._num_shown = self._text[self._num_shown : end], max(end, self._num_shown)
        return shown


def read_calls(text: str, names: set[str]) -> list[dict[str, Any]]:
    """The calls in a text that consists of calls, as OpenAI writes them; empty if it does not.

    >>> read_calls('{"name": "add", "arguments": {"a": 1}}', {"add"})[0]["function"]
    {'name': 'add', 'arguments': '{"a": 1}'}
    """
    bodies = [part.split(_CLOSE)[0] for part in text.split(_OPEN)[1:]] or [text]
    calls: list[dict[str, Any]] = []
    for body in bodies:
        try:
            found = json.loads(body)
            made = [_call(call, names) for call in (found if isinstance(found, list) else [found])]
        except (ValueError, RecursionError):  # a model may write brackets without an end
            return []
        if None in made:
            return []
        calls += filter(None, made)
    return calls


def _call(found: Any, names: set[str]) -> dict[str, Any] | None:
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": found["name"], "arguments": text}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
