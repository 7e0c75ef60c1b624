"""What an acceptance head learns from: hidden states of drafted tokens, and how they fare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwise.lines import replacing
from draftwise.train.lesson import Text, answer_hidden, groups, head_logits, pad

Label = Literal["sampled", "analytic"]

TEXTS_A_CHUNK = 64
_TOKENS_A_BATCH = 4096
_MOST_LOGITS = 1 << 26


@dataclass(frozen=True)
class Judgements:
    """Drafted tokens: hidden [N, D] float16, and two labels [N] float32.

    sampled: min(1, p/q) of the token itself, the chance that it is accepted (the paper's label).
    analytic: sum_v min(p, q) at its position, that chance before the token was drawn.
    """

    hidden: Tensor
    sampled: Tensor
    analytic: Tensor

    def labels(self, label: Label) -> Tensor:
        """[N] the chosen label."""
        return self.sampled if label == "sampled" else self.analytic

    def __len__(self) -> int:
        return len(self.sampled)


def distributions_of(logits: Tensor, temperature: float) -> Tensor:
    """[A, V] probabilities at a temperature; at 0 all mass lies on the likeliest token."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits.float() / temperature).softmax(-1)


@torch.inference_mode()
def judge(
    target: PreTrainedModel, drafter: PreTrainedModel, texts: Sequence[Text],
    generator: torch.Generator, *, temperature: float, mixing: float,
) -> Judgements:  # fmt: skip
    """Draw the drafter's token at every answered position, and mix those draws with the text.

    Source: SpecDec++, section 4.4. At each position a token Y is drawn from q, conditioned on the
    target's own text; a share ``mixing`` of the positions keeps the text's token, the others take
    Y, and the drafter reads the mixture. Only tokens that were drawn are judged.
    """
    tokens, positions = (x.to(target.device) for x in pad(texts))
    p = distributions_of(head_logits(target, answer_hidden(target, tokens, positions)), temperature)
    tokens, positions = tokens.to(drafter.device), positions.to(drafter.device)
    q = distributions_of(
        head_logits(drafter, answer_hidden(drafter, tokens, positions)), temperature
    )
    p, q = p.cpu(), q.cpu()
    drawn = torch.multinomial(q, 1, generator=generator)[:, 0]
    is_drawn = torch.rand(len(drawn), generator=generator) >= mixing
    mixed, at = tokens.clone().flatten(), positions.cpu() + 1
    mixed[at[is_drawn]] = drawn[is_drawn].to(mixed.device)
    hidden = answer_hidden(drafter, mixed.view_as(tokens), positions + 1).cpu()[is_drawn]
    rows = torch.arange(len(drawn))
    sampled = (p[rows, drawn] / q[rows, drawn]).clamp(max=1.0)
    return Judgements(
        hidden.to(torch.float16),
        sampled[is_drawn],
        torch.minimum(p, q).sum(-1).clamp(max=1.0)[is_drawn],
    )


def judge_all(
    target: PreTrainedModel, drafter: PreTrainedModel, texts: Sequence[Text], folder: Path, *,
    temperature: float, mixing: float, seed: int, progress: Callable[[int], None] | None = None,
) -> Judgements:  # fmt: skip
    """Judge all texts, chunk by chunk; chunks that lie in ``folder`` are not made again.

    Errors: OSError where ``folder`` cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = min(_TOKENS_A_BATCH, max(256, _MOST_LOGITS // int(target.config.vocab_size)))
    chunks = []
    for number, start in enumerate(range(0, len(texts), TEXTS_A_CHUNK)):
        path = folder / f"{number:05}.npz"
        if not path.exists():
            generator = torch.Generator().manual_seed(seed + number)
            chunk = texts[start : start + TEXTS_A_CHUNK]
            parts = [
                judge(
                    target, drafter, [chunk[i] for i in group], generator,
                    temperature=temperature, mixing=mixing,
                )
                for group in groups(chunk, size)
            ]  # fmt: skip
            _save(path, _joined(parts))
        chunks.append(_load(path))
        if progress is not None:
            progress(min(start + TEXTS_A_CHUNK, len(texts)))
    return _joined(chunks)


def _joined(parts: Sequence[Judgements]) -> Judgements:
    return Judgements(
        torch.cat([part.hidden for part in parts]),
        torch.cat([part.sampled for part in parts]),
        torch.cat([part.analytic for part in parts]),
    )


def _save(path: Path, found: Judgements) -> None:
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        np.savez(
            file,
            hidden=found.hidden.numpy(),
            sampled=found.sampled.numpy(),
            analytic=found.analytic.numpy(),
        )


def _load(path: Path) -> Judgements:
    with np.load(path) as stored:
        return Judgements(*(torch.from_numpy(stored[k]) for k in ("hidden", "sampled", "analytic")))
