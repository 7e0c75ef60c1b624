"""Training an acceptance head on judged tokens: the weighted loss, batches, the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from draftwise.nn.acceptance_head import AcceptanceHead
from draftwise.train.judgements import Judgements, Label
from draftwise.train.loop import Loss, Progress, Settings, fit

Batch = tuple[Tensor, Tensor]
"""Hidden states [N, D] and labels [N]."""


@dataclass(frozen=True)
class HeadOptions:
    """What kind of head, and how it learns; D and w_rej are section 5.3's recommendation.

    label: the analytic one measured better (docs/reproduction/specdecpp.md): less noise to fit.
    num_layers: D, residual layers before the last. w_rej: weight of rejections. tied: one residual
    layer used D times, as the authors' released code has it.
    """

    num_layers: int = 3
    w_rej: float = 6.0
    label: Label = "analytic"
    tied: bool = False
    epochs: float = 12.0
    lr: float = 2e-3
    tokens_per_batch: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        if self.label not in {"sampled", "analytic"}:
            raise ValueError(f"label is {self.label!r}: write sampled or analytic")
        if self.num_layers < 0 or not self.w_rej > 0 or not self.epochs > 0 or not self.lr > 0:
            raise ValueError(f"layers must be 0 or more, weight, epochs and rate above 0: {self}")


def weighted_bce(w_rej: float) -> Loss:
    """The loss of log-odds against acceptance probabilities, rejections weighted.

    Source: SpecDec++, section 4.4, with w_acc = 1. Differs: divided by the sum of the weights, as
    the authors' code does (the paper prints the sum).
    """

    def loss(head: nn.Module, batch: Batch) -> Tensor:
        hidden, accepted = batch
        odds = head(hidden)
        rejected = w_rej * (1 - accepted)
        missed = accepted * nn.functional.softplus(-odds) + rejected * nn.functional.softplus(odds)
        return missed.sum() / (accepted + rejected).sum()

    return loss


def judged_batches(data: Judgements, options: HeadOptions) -> Callable[[int], Batch]:
    """step -> batch; every epoch goes through all tokens in an order of its own."""
    size = min(options.tokens_per_batch, len(data))
    a_epoch = len(data) // size
    labels = data.labels(options.label)

    def batch(step: int) -> Batch:
        epoch, place = divmod(step, a_epoch)
        generator = torch.Generator().manual_seed(options.seed + 1000 * epoch)
        rows = torch.randperm(len(data), generator=generator)[place * size : (place + 1) * size]
        return data.hidden[rows].float(), labels[rows]

    return batch


def train_head(
    data: Judgements,
    options: HeadOptions,
    *,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    stop_at: int | None = None,
) -> AcceptanceHead:
    """A head for the hidden states of ``data``; ``checkpoint`` makes the run resumable, bit by bit.

    Source: SpecDec++, section 4.4 and appendix D.1. Differs: 12 epochs at a rate of 2e-3, which
    falls linearly to zero over the second half, where the paper has 3 epochs at 5e-5 and a cosine:
    small heads learn faster; AdamW, and batches of 1,024 tokens in place of 32 answers.
    Errors: ValueError where there is nothing to learn from; those of ``fit``.
    """
    if not len(data):
        raise ValueError("there are no judged tokens to learn from: give more prompts")
    torch.manual_seed(options.seed)
    head = AcceptanceHead(data.hidden.shape[1], options.num_layers, tied=options.tied)
    fit(
        head,
        weighted_bce(options.w_rej),
        judged_batches(data, options),
        head_settings(data, options),
        checkpoint=checkpoint,
        progress=progress,
        stop_at=stop_at,
    )
    return head.eval()


def head_settings(data: Judgements, options: HeadOptions) -> Settings:
    """The schedule: steps for the epochs asked for, of which the second half slows down."""
    a_epoch = max(1, len(data) // options.tokens_per_batch)
    steps = max(20, round(options.epochs * a_epoch))
    return Settings(steps, options.lr, warmup_steps=steps // 30 + 1, decay_steps=steps // 2)
