"""Options of training drafters and heads, shared by Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from draftwise.checks import known, option

LossName = Literal["logits", "sequence"]
Label = Literal["sampled", "analytic"]
RATE = "Learning rate."


@dataclass(frozen=True)
class LearningOptions:
    """Training options of drafters and EAGLE heads; the learning rate suits small models."""

    epochs: float = option(3.0, "Passes over all texts.")
    lr: float = option(5e-4, RATE)
    probe: float = option(
        0.05, "Share of the steps after which to report the expected speed.", least=0.0, most=1.0
    )
    batch_tokens: int = option(2048, "Approximate number of tokens per step.", least=16)
    bf16: bool | None = option(None, "Mixed precision. Default: on CUDA.", "--bf16/--no-bf16")


@dataclass(frozen=True)
class DrafterOptions(LearningOptions):
    """Training options of drafters. loss: ``logits`` = soft targets and rejection probability."""

    loss: LossName = option(
        "logits", "logits: learn the target's distribution; sequence: its tokens.", kind=str
    )
    seed: int = option(0)

    def __post_init__(self) -> None:
        known("loss", self.loss, get_args(LossName), "losses")
        if not self.epochs > 0 or not self.lr > 0:
            raise ValueError(f"epochs and learning rate must be above 0: {self}")


@dataclass(frozen=True)
class HeadOptions:
    """Shape and training of the head; the defaults of num_layers and w_rej are from section 5.3.

    label: ``analytic`` is less noisy and measured better (docs/lab/reproduction/specdecpp.md).
    """

    num_layers: int = option(
        3, "Residual layers before the last (the paper's D).", "--depth", least=0
    )
    w_rej: float = option(6.0, "Weight of rejected tokens in the loss: 1, 3, 6, 12.")
    label: Label = option(
        "analytic", "sampled: min(1, p/q) of the token; analytic: sum of min(p, q).", kind=str
    )
    tied: bool = option(False, "Repeat one residual layer D times, as in the released code.")
    epochs: float = option(12.0, "Passes over all labelled tokens.")
    lr: float = option(2e-3, RATE)
    tokens_per_batch: int = option(1024)
    seed: int = option(0)

    def __post_init__(self) -> None:
        known("label", self.label, get_args(Label))
        if self.num_layers < 0 or not self.w_rej > 0 or not self.epochs > 0 or not self.lr > 0:
            raise ValueError(f"layers must be 0 or more, weight, epochs and rate above 0: {self}")
