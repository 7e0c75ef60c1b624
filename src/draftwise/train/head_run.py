"""From a target's answers to a measured acceptance head: the one path of command and recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from draftwise.nn.acceptance_head import AcceptanceHead, save
from draftwise.train.calibration import Reliability, binary_kl, reliability, unweighted
from draftwise.train.chains import Chains, draft_chains
from draftwise.train.head import HeadOptions, train_head
from draftwise.train.judgements import Judgements, judge_all
from draftwise.train.lesson import Text
from draftwise.train.loop import Progress
from draftwise.types import DraftwiseError, Floats

HELD_OUT = 10
"""Every tenth text is held out."""


@dataclass(frozen=True)
class Setting:
    """Whose drafts are judged, and how: temperature of both models, share of the text's tokens."""

    target: PreTrainedModel
    drafter: PreTrainedModel
    temperature: float = 1.0
    mixing: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.mixing < 1:
            raise ValueError(f"mixing is {self.mixing}: at least 0 and below 1")
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}: it must be 0 or more")


@dataclass(frozen=True)
class Judged:
    """Judged tokens to learn from and to measure on, and drafts along texts held out."""

    taught: Judgements
    held_out: Judgements
    chains: Chains


def judge_texts(
    setting: Setting,
    texts: Sequence[Text],
    folder: Path,
    progress: Callable[[int], None] | None = None,
) -> Judged:
    """Judge drafts along all texts; every tenth text is held out.

    Raises DraftwiseError where fewer than two texts are left, OSError for a folder that is full.
    """
    held_out = list(texts[::HELD_OUT])
    taught = [text for number, text in enumerate(texts) if number % HELD_OUT]
    if not taught:
        raise DraftwiseError(f"{len(texts)} answers are too few to learn from: give more prompts")
    before = 0

    def judged(name: str, part: Sequence[Text]) -> Judgements:
        return judge_all(
            setting.target, setting.drafter, part, folder / name,
            temperature=setting.temperature, mixing=setting.mixing, seed=setting.seed,
            progress=None if progress is None else lambda done: progress(before + done),
        )  # fmt: skip

    first = judged("taught", taught)
    before = len(taught)
    chains = draft_chains(
        setting.target, setting.drafter, held_out, temperature=setting.temperature,
        seed=setting.seed,
    )  # fmt: skip
    return Judged(first, judged("held-out", held_out), chains)


@dataclass(frozen=True)
class Measured:
    """A head on held-out drafts: numbers, and its curves before and after undoing the weight."""

    numbers: dict[str, Any]
    curves: dict[str, Reliability]


def measure_head(judged: Judged, head: AcceptanceHead, w_rej: float) -> Measured:
    """Divergence, calibration and the bias of products, on texts that were held out.

    Truth is min(1, p/q) of the drafted token, whatever label the head learned from.
    """
    with torch.inference_mode():
        odds = head(judged.held_out.hidden.float()).double().numpy()
        chain_odds = head(judged.chains.hidden.flatten(0, 1)).view_as(judged.chains.truth)
    chain_truth = judged.chains.truth.double().numpy()
    truth = judged.held_out.sampled.double().numpy()
    raw, undone = unweighted(odds, 1.0), unweighted(odds, w_rej)
    curves = {"as trained": reliability(truth, raw)}
    if w_rej != 1:
        curves["without the weight"] = reliability(truth, undone)
    numbers = {
        "kl": binary_kl(truth, raw),
        "kl_without_weight": binary_kl(truth, undone),
        "kl_of_the_mean": binary_kl(truth, np.full_like(truth, truth.mean())),
        "ece": curves["as trained"].ece,
        "ece_without_weight": reliability(truth, undone).ece,
        "mean_acceptance": float(truth.mean()),
        "num_taught": len(judged.taught),
        "num_held_out": len(judged.held_out),
        "product_bias": _bias(unweighted(chain_odds.double().numpy(), 1.0), chain_truth),
        "product_bias_without_weight": _bias(
            unweighted(chain_odds.double().numpy(), w_rej), chain_truth
        ),
        "product_truth": chain_truth.cumprod(axis=1).mean(axis=0).tolist(),
    }
    return Measured(numbers, curves)


def _bias(predicted: Floats, truth: Floats) -> list[float]:
    """Mean predicted less mean true probability that all of the first 1, 2, ... tokens stand."""
    gaps = predicted.cumprod(axis=1) - truth.cumprod(axis=1)
    found: list[float] = gaps.mean(axis=0).tolist()
    return found


def make_head(
    setting: Setting,
    judged: Judged,
    options: HeadOptions,
    out: Path,
    *,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Train a head, measure it, and write it to ``out`` with what was measured."""
    head = train_head(judged.taught, options, checkpoint=checkpoint, progress=progress)
    measured = measure_head(judged, head, options.w_rej)
    shown = ("kl", "kl_of_the_mean", "ece", "mean_acceptance")
    about = {
        "w_rej": options.w_rej,
        "label": options.label,
        "tied": options.tied,
        "temperature": setting.temperature,
        "mixing": setting.mixing,
        "held_out": {name: round(measured.numbers[name], 4) for name in shown},
    }
    save(head, out, about)
    return measured
