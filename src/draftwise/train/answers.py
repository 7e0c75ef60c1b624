"""A target's own answers to prompts, kept on disk so that a stopped run goes on with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from draftwise.nn.model import CausalModel
from draftwise.train.lesson import Text
from draftwise.train.stream import Ask, continuations

Progress = Callable[[int], None]
"""Told how many answers there are so far."""


def answers(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    path: Path,
    *,
    max_new_tokens: int,
    eos_token_id: int,
    seed: int,
    rows: int,
    progress: Progress | None = None,
) -> list[Text]:
    """The target's answers to `prompts`, each at its own temperature, `rows` of them at a time.

    Source: MetaSD, appendix F.1 (self-distilled data). `path` keeps each answer as soon as it is
    finished; its draws depend on `seed` and its place alone, so a stopped run ends as an unstopped
    one but for the rounding of forwards with other neighbours.
    Errors: OSError where `path` cannot be written; what was kept before stays.
    """
    found = dict(read_kept(path))
    asks = {
        index: Ask(prompt, heat)
        for index, (prompt, heat) in enumerate(zip(prompts, temperatures, strict=True))
        if index not in found
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    said = continuations(
        CausalModel(target, "target"),
        asks,
        max_new_tokens=max_new_tokens,
        eos_token_ids=[eos_token_id],
        rows=rows,
        seed=seed,
    )
    with path.open("a", encoding="utf-8") as file:
        for index, answer in said:
            found[index] = answer
            file.write(json.dumps([index, *answer]) + "\n")
            file.flush()
            if progress is not None:
                progress(len(found))
    return [Text((*prompt, *found[i]), len(prompt)) for i, prompt in enumerate(prompts)]


def read_kept(path: Path) -> list[tuple[int, list[int]]]:
    """(index, tokens) of each finished line; one that a stop tore in two is taken away."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, "utf-8")
    return [(row[0], row[1:]) for row in map(json.loads, text.splitlines())]
