"""Lessons: token sequences with the target's logits on their answers, kept on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from draftwise.files import replacing, write_text
from draftwise.train.data import Batch, Text, answer_logits, groups, pad, shuffled
from draftwise.train.drafter import distillation_loss
from draftwise.train.loop import Progress, TrainingSettings, fit

Logits = NDArray[np.float16]


@dataclass(frozen=True)
class Lesson:
    """Texts and the teacher's logits [A, V] for their A learned positions, in order."""

    texts: tuple[Text, ...]
    logits: Logits

    def offsets(self) -> list[int]:
        """Where each text's logits begin."""
        sizes = [0] + [len(text.tokens) - text.start for text in self.texts]
        return list(accumulate(sizes))[:-1]


@torch.inference_mode()
def teach(target: PreTrainedModel, texts: Sequence[Text], folder: Path) -> Lesson:
    """Write the lesson of `texts` with the logits of `target` into `folder`, or load it there."""
    if (folder / "texts.json").exists():
        return load(folder)
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(len(text.tokens) - text.start for text in texts)
    shape = (total, target.config.vocab_size)
    order = [index for group in groups(texts, 4096) for index in group]
    with replacing(folder / "logits.npy") as unfinished:
        table = np.lib.format.open_memmap(unfinished, "w+", np.float16, shape)
        reserve(unfinished)
        done = 0
        for group in groups(texts, 4096):
            tokens, positions = (x.to(target.device) for x in pad([texts[i] for i in group]))
            logits = answer_logits(target, tokens, positions)
            table[done : done + len(logits)] = logits.cpu().numpy()
            done += len(logits)
        table.flush()
    rows = [[texts[i].start, *texts[i].tokens] for i in order]
    write_text(folder / "texts.json", json.dumps(rows))  # last: it marks the lesson complete
    return load(folder)


def reserve(file: Path) -> None:
    """Allocate the disk blocks of a sparse file; a full disk under a memory map kills the process.

    Errors: OSError if there is not enough room; does nothing where the system cannot tell.
    """
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def load(folder: Path) -> Lesson:
    """The lesson kept in `folder`; its logits stay on disk until they are used."""
    rows = json.loads((folder / "texts.json").read_text("utf-8"))
    logits = np.load(folder / "logits.npy", mmap_mode="r")
    return Lesson(tuple(Text(tuple(row[1:]), row[0]) for row in rows), logits)


def lesson_batches(
    lessons: Sequence[Lesson], *, seed: int, tokens_per_batch: int = 2048
) -> Callable[[int], Batch]:
    """step -> batch; every epoch visits all lessons' groups in a new order."""
    offsets = [lesson.offsets() for lesson in lessons]
    table = [
        (number, group)
        for number, lesson in enumerate(lessons)
        for group in groups(lesson.texts, tokens_per_batch)
    ]
    entry = shuffled(table, seed)

    def batch(step: int) -> Batch:
        number, group = entry(step)
        lesson = lessons[number]
        tokens, positions = pad([lesson.texts[i] for i in group])
        starts = [offsets[number][i] for i in group]
        sizes = [len(lesson.texts[i].tokens) - lesson.texts[i].start for i in group]
        parts = [lesson.logits[s : s + n] for s, n in zip(starts, sizes, strict=True)]
        return Batch(tokens, positions, torch.from_numpy(np.concatenate(parts)))

    return batch


def distill(
    drafter: PreTrainedModel,
    lessons: Sequence[Lesson],
    settings: TrainingSettings,
    *,
    seed: int,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Train `drafter` in place on the target's logits and return the loss of every step."""
    read, device = lesson_batches(lessons, seed=seed), drafter.device

    def batch(step: int) -> Batch:
        found = read(step)
        return Batch(*(x.to(device) for x in (found.tokens, found.positions, found.logits)))

    return fit(
        drafter, distillation_loss, batch, settings, checkpoint=checkpoint, progress=progress
    )
