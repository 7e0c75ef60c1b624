"""Distillation: a drafter learns a target's distribution, and how often it is accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwise.train.lesson import (
    Batch,
    Lesson,
    Text,
    answer_logits,
    groups,
    lesson_batches,
    pad,
)
from draftwise.train.loop import Loss, Progress, Settings, fit


def acceptance(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Acceptance probability alpha [A] at temperature 1: the overlap sum_v min(p_v, q_v).

    Source: Leviathan et al. 2023, theorem 3.5. Inputs are logits [A, V] of target and drafter.
    """
    p, q = p_logits.float().softmax(-1), q_logits.float().softmax(-1)
    return torch.minimum(p, q).sum(-1)


def distillation_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy against the target's distribution plus its rejection probability.

    Source: MetaSD, appendix F.1, distils on sampled text; the soft targets and the second term,
    one minus `acceptance`, are from DistillSpec (Zhou et al. 2023): the first learns fast, the
    second is what a drafter is for. Where only some tokens can be drafted, p is over them.
    """
    logits = answer_logits(model, batch.tokens, batch.positions, batch.ids).float()
    log_q = logits.log_softmax(-1)
    p = batch.logits.float().softmax(-1)
    soft = -(p * log_q).sum(-1).mean()
    rejected = 1 - torch.minimum(p, log_q.exp()).sum(-1).mean()
    return soft + rejected


def sequence_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy against the tokens that the target sampled.

    Source: MetaSD, appendix F.1 (sequence-level self-distillation, Kim and Rush 2016).
    """
    logits = answer_logits(model, batch.tokens, batch.positions).float()
    return nn.functional.cross_entropy(logits, batch.tokens.flatten()[batch.positions + 1])


def distill(
    drafter: PreTrainedModel,
    lessons: Sequence[Lesson],
    settings: Settings,
    *,
    seed: int,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Train `drafter` in place on the target's logits and return the loss of every step."""
    read = lesson_batches(lessons, seed=seed)
    return learn(drafter, read, settings, checkpoint=checkpoint, progress=progress)


def learn(
    drafter: PreTrainedModel,
    read: Callable[[int], Batch],
    settings: Settings,
    *,
    loss: Loss = distillation_loss,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    stop_at: int | None = None,
) -> list[float]:
    """Train `drafter` in place on the batches of `read`; the rest is `fit`'s."""
    device = drafter.device

    def batch(step: int) -> Batch:
        found = read(step)
        return replace(
            found,
            tokens=found.tokens.to(device),
            positions=found.positions.to(device),
            logits=found.logits.to(device),
        )

    return fit(
        drafter, loss, batch, settings, checkpoint=checkpoint, progress=progress, stop_at=stop_at
    )


@torch.inference_mode()
def measure_acceptance(
    target: PreTrainedModel,
    drafters: Mapping[str, PreTrainedModel],
    texts: Sequence[Text],
    sharpness: float = 1.0,
) -> dict[str, float]:
    """Mean alpha of every drafter over the learned positions of `texts`, which all of them follow.

    The target reads the texts once, whatever the number of drafters. sharpness: 1 / temperature.
    """
    totals, count = dict.fromkeys(drafters, 0.0), 0
    for group in groups(texts, 4096):
        tokens, positions = (x.to(target.device) for x in pad([texts[i] for i in group]))
        p = sharpness * answer_logits(target, tokens, positions)
        for name, drafter in drafters.items():
            q = sharpness * answer_logits(drafter, tokens, positions)
            totals[name] += float(acceptance(p, q).sum())
        count += len(positions)
    return {name: total / count for name, total in totals.items()}
