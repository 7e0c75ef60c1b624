"""Training data: token sequences, and the target's outputs over them, computed once and cached."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwise.files import replacing
from draftwise.nn.heads.eagle import lent_rows

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
    best = head_logits(target, last).argmax(-1)
    return Observed(tokens, positions, states.float(), last, best, target)


def halved(states: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to float16, or to bfloat16 if ``dtype`` is or a state exceeds 65,504 (Gemma 3)."""
    half = states.half()
    return half if dtype != torch.bfloat16 and half.isfinite().all() else states.bfloat16()


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

    The target's states are cached in ``keep``, 2 (F + D) bytes per token. Logits are recomputed
    from them, only for tokens that a head can draft, at a hundredth of the cost of a forward.
    """
    table = [
        (f"{name}/{number}.pt", [texts[i] for i in group])
        for name, texts in lessons.items()
        for number, group in enumerate(groups(texts, tokens_per_batch))
    ]
    entry = shuffled(table, seed)

    def batch(step: int) -> Observed:
        name, texts = entry(step)
        if keep is None:
            return observe(target, texts, taps)
        path = keep / name
        if path.exists():
            kept = torch.load(path, map_location=target.device, weights_only=True)
            tokens, positions, states, last, best = kept
            return Observed(tokens, positions, states.float(), last.to(target.dtype), best, target)
        found = observe(target, texts, taps)
        path.parent.mkdir(parents=True, exist_ok=True)
        halves = (halved(found.states, target.dtype), halved(found.last, target.dtype))
        with replacing(path) as unfinished:
            torch.save([found.tokens, found.positions, *halves, found.best], unfinished)
        return found

    return batch
