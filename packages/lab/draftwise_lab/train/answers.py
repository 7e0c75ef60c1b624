"""Sampling a target's answers to many prompts, in a batch that refills, with results on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from draftwise.nn.cache import RaggedCache
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import SampledSpan, warped
from draftwise.types import SamplingParams
from draftwise_lab.train.data import Text


@dataclass(frozen=True, slots=True)
class SamplingTask:
    """A prompt of at least one token, and its temperature; 0 is greedy."""

    prompt: Sequence[int]
    temperature: float = 1.0


@dataclass(slots=True)
class _AnswerRow:
    index: int
    prompt: Sequence[int]
    span: SampledSpan
    rng: torch.Generator
    answer: list[int] = field(default_factory=list)


@torch.inference_mode()
def continuations(
    model: CausalModel,
    tasks: Mapping[int, SamplingTask],
    *,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    rows: int,
    seed: int,
) -> Iterator[tuple[int, list[int]]]:
    """Yield (index, new tokens) of every prompt in order of completion, including end tokens.

    ``rows`` prompts run together; when an eighth of the rows is free, the next ones are prefilled
    in one forward. Each prompt has a generator seeded by ``seed`` and its index, so other prompts
    affect its answer only through rounding. Errors: ValueError for a prompt that leaves no room
    within the model's positions.
    """
    longest = max((len(task.prompt) for task in tasks.values()), default=1)
    if longest + max_new_tokens > model.max_positions:
        raise ValueError(f"prompts of {longest} tokens leave no room for {max_new_tokens} more")
    waiting = list(tasks.items())[::-1]
    rows = min(rows, len(waiting))
    cache = model.new_cache(rows, longest + max_new_tokens)
    running: dict[int, _AnswerRow] = {}
    while waiting or running:
        free = [place for place in range(rows) if place not in running]
        if waiting and 8 * len(free) >= min(rows, 8 * len(waiting)):
            places = free[: len(waiting)]
            for place in places:
                index, task = waiting.pop()
                rng = torch.Generator().manual_seed(seed * 1_000_003 + index)
                span = SampledSpan(SamplingParams(task.temperature), 1)
                running[place] = _AnswerRow(index, task.prompt, span, rng)
                cache.lengths[place] = 0
        else:
            places = sorted(running)
        _step(model, cache, places, [running[place] for place in places])
        for place, row in sorted(running.items()):
            if row.answer[-1] in eos_token_ids or len(row.answer) >= max_new_tokens:
                del running[place]
                yield row.index, row.answer


def _step(
    model: CausalModel, cache: RaggedCache, places: Sequence[int], rows: Sequence[_AnswerRow]
) -> None:
    """Run each row's prompt, or its last token, through the model, and append a sampled token."""
    fed = [row.answer[-1:] or list(row.prompt) for row in rows]
    logits = model.extend(cache, places, fed, keep=1)
    last = torch.cat([logits.last(index, 1) for index in range(len(rows))])
    uniforms = torch.cat([torch.rand(1, generator=row.rng) for row in rows]).to(model.device)
    drawn = warped(last, [row.span for row in rows]).draw(uniforms)
    for row, token in zip(rows, drawn.tolist(), strict=True):
        row.answer.append(token)


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
    progress: Callable[[int], None] | None = None,
) -> list[Text]:
    """Sample the target's answers to `prompts`, each at its temperature, `rows` at a time.

    Source: MetaSD, appendix F.1 (self-distilled data). Each answer is written to `path` when it is
    complete and sampled with `seed` and its index, so an interrupted run resumes. Errors: OSError
    if `path` cannot be written.
    """
    found = dict(read_kept(path))
    every = enumerate(zip(prompts, temperatures, strict=True))
    tasks = {index: SamplingTask(*pair) for index, pair in every if index not in found}
    path.parent.mkdir(parents=True, exist_ok=True)
    said = continuations(
        CausalModel(target, "target"), tasks, max_new_tokens=max_new_tokens,
        eos_token_ids=[eos_token_id], rows=rows, seed=seed,
    )  # fmt: skip
    with path.open("a", encoding="utf-8", buffering=1) as file:
        for index, answer in said:
            found[index] = answer
            file.write(json.dumps([index, *answer]) + "\n")
            if progress is not None:
                progress(len(found))
    return [Text((*prompt, *found[i]), len(prompt)) for i, prompt in enumerate(prompts)]


def read_kept(path: Path) -> list[tuple[int, list[Any]]]:
    """(index, tokens or text) of each complete line; a truncated last line is removed."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, "utf-8")
    return [(row[0], row[1:]) for row in map(json.loads, text.splitlines())]
