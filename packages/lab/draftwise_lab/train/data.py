"""Training data: token sequences, and the target's outputs over them, computed once and cached."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwise.files import replacing
from draftwise.nn.eagle import lent_rows

T = TypeVar("T")


@dataclass(frozen=True)
class Text:
    """A token sequence, trained on from `start`; ValueError if `start` is out of range."""

    tokens: tuple[int, ...]
    start: int

    def __post_init__(self) -> None:
        if not 0 < self.start < len(self.tokens):
            raise ValueError(
                f"start must lie inside the {len(self.tokens)} tokens and leave one before it, "
                f"got {self.start}"
            )

    @property
    def file(self) -> str:
        """The name of the file that keeps the target's outputs over this text."""
        content = json.dumps([self.start, *self.tokens]).encode()
        return hashlib.sha256(content).hexdigest()[:24] + ".pt"


@dataclass(frozen=True)
class Batch:
    """Padded tokens [B, T], flat positions [A] that predict a trained token, logits [A, V]."""

    tokens: Tensor
    positions: Tensor
    logits: Tensor


def answer_logits(model: PreTrainedModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Logits [A, V] at flat `positions` [A] of `tokens` [B, T], computed only there."""
    return head_logits(model, answer_hidden(model, tokens, positions))


def answer_hidden(model: PreTrainedModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Normalised last hidden states [A, D] at flat `positions` [A] of `tokens` [B, T]."""
    output = model.base_model(input_ids=tokens.to(model.device), use_cache=False)
    hidden: Tensor = output.last_hidden_state.flatten(0, 1)
    return hidden[positions.to(model.device)]


def head_logits(model: PreTrainedModel, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
    """Logits [A, V] of the last hidden states [A, D], or only those of the tokens ``ids``."""
    head = model.get_output_embeddings()
    logits: Tensor = head(hidden) if ids is None else lent_rows(head, ids)(hidden)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def pad(texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
    """Right-padded tokens [B, T] and the flat positions [A] before every trained token."""
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


def shuffled(table: Sequence[T], seed: int) -> Callable[[int], T]:
    """step -> entry; every epoch visits all entries in a new random order."""

    def entry(step: int) -> T:
        epoch, place = divmod(step, len(table))
        order = list(table)
        random.Random(f"{seed} {epoch}").shuffle(order)
        return order[place]

    return entry


@dataclass(frozen=True)
class Observed:
    """The target's outputs over some texts.

    tokens: [B, T] padded. positions: [A] flat, those that predict a trained token. states: [B, T,
    F] concatenated taps. last: [A, D] normalised. best: [A] the target's most likely tokens.
    """

    tokens: Tensor
    positions: Tensor
    states: Tensor
    last: Tensor
    best: Tensor
    target: PreTrainedModel

    @torch.no_grad()
    def logits(self, ids: Tensor | None = None) -> Tensor:
        """The target's logits [A, V], or [A, len(ids)] of these tokens only, which is cheaper."""
        return head_logits(self.target, self.last, ids).float()


@torch.no_grad()
def observe(target: PreTrainedModel, texts: Sequence[Text], taps: Sequence[int]) -> Observed:
    """Run one forward of the target over these texts."""
    tokens, positions = (x.to(target.device) for x in pad(texts))
    output = target.base_model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    nothing = output.last_hidden_state[..., :0]
    states = torch.cat([nothing, *(output.hidden_states[tap] for tap in taps)], dim=-1)
    last = output.last_hidden_state.flatten(0, 1)[positions]
    best = head_logits(target, last).max(-1).indices  # ``argmax`` takes five times as long on CPUs
    return Observed(tokens, positions, states.float(), last, best, target)


def halved(states: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to float16, or to bfloat16 if ``dtype`` is or a state exceeds 65,504 (Gemma 3)."""
    half = states.half()
    return half if dtype != torch.bfloat16 and half.isfinite().all() else states.bfloat16()


@dataclass(frozen=True)
class TextOutputs:
    """The target's outputs over one text of n tokens, of which the last A are trained.

    states: [n, F] concatenated taps. last: [A, D] normalised. best: [A] the most likely tokens.
    """

    states: Tensor
    last: Tensor
    best: Tensor

    def save(self, folder: Path, text: Text, dtype: torch.dtype) -> None:
        """Write 2 (F + D) bytes per token to the file of this text."""
        folder.mkdir(parents=True, exist_ok=True)
        halves = (halved(self.states, dtype), halved(self.last, dtype))
        kept = [tensor.cpu().clone() for tensor in (*halves, self.best)]  # not their storage
        with replacing(folder / text.file) as unfinished:
            torch.save(kept, unfinished)


def observed_batches(
    target: PreTrainedModel,
    lessons: Mapping[str, Sequence[Text]],
    taps: Sequence[int],
    *,
    seed: int,
    tokens_per_batch: int = 2048,
    keep: Path | None = None,
) -> Callable[[int], Observed]:
    """step -> batch; every epoch visits all batches in a new random order.

    The target's outputs are cached in ``keep``, a file for each text. Logits are recomputed from
    them, only for tokens that a head can draft, at a hundredth of the cost of a forward.
    """
    table = [
        (name, group)
        for name, texts in lessons.items()
        for group in groups(texts, tokens_per_batch)
    ]
    entry = shuffled(table, seed)

    def batch(step: int) -> Observed:
        name, group = entry(step)
        texts = [lessons[name][index] for index in group]
        folder = None if keep is None else keep / name
        if folder is None:
            return observe(target, texts, taps)
        paths = [folder / text.file for text in texts]
        if all(path.exists() for path in paths):
            return _remembered(target, texts, paths)
        found = observe(target, texts, taps)
        for text, outputs in zip(texts, _by_text(found, texts), strict=True):
            outputs.save(folder, text, target.dtype)
        return found

    return batch


def _by_text(found: Observed, texts: Sequence[Text]) -> Iterator[TextOutputs]:
    counts = [len(text.tokens) - text.start for text in texts]
    last, best = iter(found.last), iter(found.best)
    for text, states, num in zip(texts, found.states, counts, strict=True):
        own = [torch.stack(list(islice(rows, num))) for rows in (last, best)]
        yield TextOutputs(states[: len(text.tokens)], *own)


def _remembered(target: PreTrainedModel, texts: Sequence[Text], paths: Sequence[Path]) -> Observed:
    """The target's outputs over these texts, from the files of ``TextOutputs.save``."""
    kept = [torch.load(path, weights_only=True) for path in paths]
    states, last, best = zip(*kept, strict=True)
    padded = nn.utils.rnn.pad_sequence([one.float() for one in states], batch_first=True)
    tokens, positions, padded = (x.to(target.device) for x in (*pad(texts), padded))
    lasts = torch.cat([one.to(target.dtype) for one in last]).to(target.device)
    return Observed(tokens, positions, padded, lasts, torch.cat(best).to(target.device), target)
