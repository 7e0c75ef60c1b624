"""What ``draftwise train eagle`` reads: a file of texts, or prompts that the target answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwise.chat import Message
from draftwise.cli import training as t
from draftwise.lines import numbered_lines
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.train.lesson import Text

Example = tuple[str | Sequence[Message], str | None]
"""Prompt and completion; no prompt for a text, no completion to be answered."""


@dataclass(frozen=True)
class Asking:
    """How prompts are answered: temperatures in turn, tokens at most, rows at once."""

    heats: Sequence[float]
    max_new_tokens: int
    rows: int
    max_length: int
    seed: int


def read_examples(file: Path) -> list[Example]:
    """Prompt and completion of each line; no prompt for a ``text``, no completion to be answered.

    Raises DraftwiseError that names the line which is something else, or where there is none.
    """
    found = [_example(line, f"{file}, line {number}") for number, line in numbered_lines(file)]
    if not found:
        raise DraftwiseError(f"{file} is empty: write one json object a line")
    return found


def _example(line: str, where: str) -> Example:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DraftwiseError(f"{where} is not json: {error}") from error
    if isinstance(row, dict):
        prompt, text, completion = (row.get(key) for key in ("prompt", "text", "completion"))
        if isinstance(text, str) and text:
            return "", text
        if isinstance(prompt, str) and prompt and (completion is None or completion):
            return prompt, completion if completion is None else str(completion)
    raise DraftwiseError(
        f"{where}: write an object with a string `text`, `prompt` and `completion`, or `prompt`"
    )


def as_texts(
    scene: t.Scene, examples: Sequence[Example], how: Asking, bars: t.Bars, folder: Path
) -> list[Text]:
    """All texts as tokens, the prompts without a completion answered by the target."""
    from draftwise.train.answers import answers
    from draftwise.train.lesson import Text

    found, unanswered = [], []
    room = min(how.max_length, scene.target.max_positions)
    for prompt, completion in examples:
        start = scene.encode(prompt) if prompt else []
        if completion is None:
            unanswered.append(start[: max(1, room - how.max_new_tokens)])
            continue
        rest = scene.tokenizer(completion, add_special_tokens=not prompt)["input_ids"]
        end = [scene.eos_token_id] if scene.eos_token_id >= 0 else []
        tokens = [*start, *rest, *end][:room]
        if max(1, len(start)) < len(tokens):
            found.append(Text(tuple(tokens), max(1, len(start))))
    if not unanswered:
        return found
    return found + answers(
        scene.target.module,
        unanswered,
        [how.heats[i % len(how.heats)] for i in range(len(unanswered))],
        folder / "answers.jsonl",
        max_new_tokens=how.max_new_tokens,
        eos_token_id=scene.eos_token_id,
        seed=how.seed,
        rows=how.rows,
        progress=bars.stage("answers", len(unanswered)),
    )
