"""A target's own answers to prompts, kept on disk so that a stopped run goes on with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from draftwise.train.generate import continue_prompts
from draftwise.train.lesson import Text

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

    Source: MetaSD, appendix F.1 (self-distilled data). `path` keeps what is finished; the draws of
    a batch depend on `seed` and its place alone, so a stopped run ends as an unstopped one.
    Errors: OSError where `path` cannot be written; what was kept before stays.
    """
    found: list[list[int]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    while len(found) < len(prompts):
        chunk = slice(len(found), len(found) + rows)
        given = [list(prompt) for prompt in prompts[chunk]]
        new = continue_prompts(
            target,
            given,
            temperatures[chunk],
            max_new_tokens=max_new_tokens,
            eos_token_id=eos_token_id,
            seed=seed + len(found),
        )
        found += [[len(a), *a, *b] for a, b in zip(given, new, strict=True)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".tmp").write_text(json.dumps(found), "utf-8")
        os.replace(path.with_suffix(".tmp"), path)
        if progress is not None:
            progress(len(found))
    return [Text(tuple(row[1:]), row[0]) for row in found]
