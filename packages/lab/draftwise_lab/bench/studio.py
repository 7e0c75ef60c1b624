"""What a contest writes: reports, and answer files in Spec-Bench's format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwise.bench.results import Run
from draftwise.bench.suites import Item
from draftwise_lab.bench.report import write_report
from draftwise_lab.bench.scout import look, scout


def write_answers(
    folder: Path, items: Sequence[Item], runs: Sequence[Run], tokenizer: Any
) -> list[Path]:
    """Write a file per method with a line per question; repeats are the line's choices."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for method in dict.fromkeys(run.method for run in runs):
        mine = [run for run in runs if run.method == method]
        paths.append(folder / f"{file_name(method)}.jsonl")
        lines = [
            json.dumps(_answer(items[index], [r for r in mine if r.item == index], tokenizer))
            for index in sorted({run.item for run in mine})
        ]
        paths[-1].write_text("\n".join(lines) + "\n", "utf-8")
    return paths


def file_name(method: str) -> str:
    """A method's name with characters that file systems refuse replaced by hyphens.

    >>> file_name("transformers:tinyx5/heuristic")
    'transformers-tinyx5-heuristic'
    """
    return "".join(c if c.isalnum() or c in "._@=+-" else "-" for c in method)


def _answer(item: Item, runs: Sequence[Run], tokenizer: Any) -> dict[str, Any]:
    number = int(item.id) if item.id.isdigit() else item.id
    choices = [
        {
            "index": index,
            "turns": [tokenizer.decode(ids, skip_special_tokens=True) for ids in run.tokens],
            "decoding_steps": run.num_rounds,
            "new_tokens": [len(ids) for ids in run.tokens],
            "wall_time": run.seconds,
            "accept_lengths": run.emitted,
        }
        for index, run in enumerate(sorted(runs, key=lambda run: run.repeat))
    ]
    return {"question_id": number, "category": item.category or item.domain, "choices": choices}


__all__ = ["look", "scout", "write_answers", "write_report"]
