"""Prompts from an argument, a file, stdin, or a file of many; as text or as messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwise.chat import Message, check_unicode, is_messages
from draftwise.files import TRACE_BYTES, prompt_lines, read_text
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.chat import Prompt
    from draftwise.speculator import Speculator


@dataclass(frozen=True, slots=True)
class Given:
    """A prompt with its file and line for error messages (empty for a single prompt)."""

    prompt: str | Sequence[Message]
    where: str = ""

    def encoded(self, speculator: Speculator) -> Prompt:
        """Token ids; DraftwiseError names the line of a file."""
        from draftwise.engine.options import encode_all

        try:
            return encode_all(self.prompt, speculator.tokenizer, speculator.target)[0]
        except DraftwiseError as error:
            raise DraftwiseError(f"{self.where}: {error}" if self.where else str(error)) from error


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """A single prompt from the argument, a file or stdin, without its last line break."""
    if prompt is not None and file is not None:
        raise DraftwiseError("give the prompt as an argument or with --file, not both")
    if prompt is not None and prompt != "-":
        return _checked(prompt, "the prompt")
    if file is not None:
        return _checked(read_text(file, TRACE_BYTES, pipes=True).removesuffix("\n"), str(file))
    if prompt is None and sys.stdin.isatty():
        raise DraftwiseError("no prompt: give it as an argument, with --file, or on stdin")
    return _checked(sys.stdin.read().removesuffix("\n"), "the prompt on stdin")


def read_batch(file: Path) -> list[Given]:
    """The prompts of a file: one per line, or ``prompt`` or ``messages`` of each jsonl line."""
    places = ((f"{file}, line {number}", entry) for number, entry in prompt_lines(file))
    return [Given(_prompt_of(where, entry), where) for where, entry in places]


def as_chat(given: Given, system: str | None) -> Given:
    """The prompt as messages; DraftwiseError for a second system message."""
    if isinstance(given.prompt, str):
        messages: list[Message] = [{"role": "user", "content": given.prompt}]
    else:
        messages = list(given.prompt)
    if system is not None:
        if any(message.get("role") == "system" for message in messages):
            raise DraftwiseError(f"{given.where}: there is a system message; leave out --system")
        messages = [{"role": "system", "content": system}, *messages]
    return replace(given, prompt=messages)


def _prompt_of(where: str, entry: Any) -> str | Sequence[Message]:
    if isinstance(entry, dict) and "messages" in entry:
        messages: Sequence[Message] = entry["messages"]
        if is_messages(messages):
            return messages
        raise DraftwiseError(f'{where}: "messages" is no list of messages with role and content')
    prompt = entry.get("prompt") if isinstance(entry, dict) else entry
    if not isinstance(prompt, str):
        raise DraftwiseError(f'{where}: no text under "prompt", and no "messages"')
    return _checked(prompt, where)


def _checked(prompt: str, where: str) -> str:
    if not prompt:
        raise DraftwiseError(f"{where} is empty: there is nothing to continue")
    check_unicode(where, prompt)
    return prompt
