"""Lessons: token sequences with a teacher's logits on their answers, kept on disk."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from draftwise.lines import replacing, write_text
from draftwise.nn.lent import lent_rows

Logits = NDArray[np.float16]


@dataclass(frozen=True)
class Text:
    """A token sequence of which the positions from `start` on are to be learned."""

    tokens: tuple[int, ...]
    start: int

    def __post_init__(self) -> None:
        if not 0 < self.start < len(self.tokens):
            raise ValueError(
                f"start must lie inside the {len(self.tokens)} tokens and leave one before it, "
                f"got {self.start}"
            )


@dataclass(frozen=True)
class Lesson:
    """Texts and the teacher's logits [A, V] for their A learned positions, in order."""

    texts: tuple[Text, ...]
    logits: Logits

    def offsets(self) -> list[int]:
        """Where each text's logits begin."""
        sizes = [0] + [len(text.tokens) - text.start for text in self.texts]
        return list(accumulate(sizes))[:-1]


@dataclass(frozen=True)
class Batch:
    """Padded tokens [B, T], flat positions [A] that predict a learned token, logits [A, V].

    ids: the tokens [V] that the logits are of; None = all.
    """

    tokens: Tensor
    positions: Tensor
    logits: Tensor
    ids: Tensor | None = None


def answer_logits(
    model: PreTrainedModel, tokens: Tensor, positions: Tensor, ids: Tensor | None = None
) -> Tensor:
    """Logits [A, V] at flat `positions` [A] of `tokens` [B, T]; the head runs nowhere else."""
    return head_logits(model, answer_hidden(model, tokens, positions), ids)


def answer_hidden(model: PreTrainedModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """The last hidden states [A, D], normed, at flat `positions` [A] of `tokens` [B, T]."""
    hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    found: Tensor = hidden.flatten(0, 1)[positions]
    return found


def head_logits(model: PreTrainedModel, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
    """What the model makes of its last hidden states [A, D]: logits [A, V], or of ``ids`` alone."""
    head = model.get_output_embeddings()
    logits: Tensor = head(hidden) if ids is None else lent_rows(head, ids)(hidden)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def pad(texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
    """Right-padded tokens [B, T] and the flat positions [A] before every learned token."""
    width = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), width, dtype=torch.long)
    positions = []
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.tensor(text.tokens)
        first = row * width + text.start - 1
        positions.append(torch.arange(first, first + len(text.tokens) - text.start))
    return tokens, torch.cat(positions)


def groups(texts: Sequence[Text], tokens_per_batch: int) -> list[list[int]]:
    """Indices of texts of similar length, each group of about `tokens_per_batch` padded tokens."""
    found: list[list[int]] = [[]]
    for index in sorted(range(len(texts)), key=lambda i: len(texts[i].tokens)):
        if found[-1] and (len(found[-1]) + 1) * len(texts[index].tokens) > tokens_per_batch:
            found.append([])
        found[-1].append(index)
    return found


def group_order(num: int, seed: int, epoch: int) -> list[int]:
    """In what order an epoch goes through ``num`` groups."""
    order = list(range(num))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order


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
    """Give a sparse file its room on the disk now; a full disk under a memory map ends the process.

    Raises OSError where there is not enough; does nothing where the system cannot tell.
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
    """step -> batch; every epoch goes through all lessons' groups in an order of its own."""
    offsets = [lesson.offsets() for lesson in lessons]
    table = [
        (number, group)
        for number, lesson in enumerate(lessons)
        for group in groups(lesson.texts, tokens_per_batch)
    ]

    def batch(step: int) -> Batch:
        epoch, place = divmod(step, len(table))
        number, group = table[group_order(len(table), seed, epoch)[place]]
        lesson = lessons[number]
        tokens, positions = pad([lesson.texts[i] for i in group])
        starts = [offsets[number][i] for i in group]
        sizes = [len(lesson.texts[i].tokens) - lesson.texts[i].start for i in group]
        parts = [lesson.logits[s : s + n] for s, n in zip(starts, sizes, strict=True)]
        return Batch(tokens, positions, torch.from_numpy(np.concatenate(parts)))

    return batch
