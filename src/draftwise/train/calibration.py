"""How good a head's predictions are: divergence, calibration, and the bias of their product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwise.nn.acceptance_head import AcceptanceHead
from draftwise.train.generate import continue_prompts
from draftwise.train.judgements import distributions_of
from draftwise.train.lesson import Text, answer_hidden, groups, head_logits, pad
from draftwise.types import DraftwiseError, Floats

NUM_BINS = 10


def binary_kl(truth: Floats, predicted: Floats) -> float:
    """Mean divergence of predicted from true acceptance probabilities, in nats.

    Source: SpecDec++, appendix D.3. Predictions count as at least 1e-6 away from 0 and 1.

    >>> binary_kl(np.array([0.0, 1.0]), np.array([0.5, 0.5])).__round__(4)
    0.6931
    """
    p, q = truth.clip(0, 1), predicted.clip(1e-6, 1 - 1e-6)
    with np.errstate(divide="ignore", invalid="ignore"):
        accepted = np.where(p > 0, p * np.log(p / q), 0.0)
        rejected = np.where(p < 1, (1 - p) * np.log((1 - p) / (1 - q)), 0.0)
    return float((accepted + rejected).mean())


@dataclass(frozen=True)
class Reliability:
    """Predictions in bins of equal width: mean predicted, mean true, and how many. [NUM_BINS]"""

    predicted: Floats
    truth: Floats
    counts: Floats

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean gap between predicted and true, by tokens."""
        gaps = np.abs(self.predicted - self.truth)
        return float((gaps * self.counts).sum() / self.counts.sum())


def reliability(truth: Floats, predicted: Floats) -> Reliability:
    """Sort predictions into bins.

    >>> reliability(np.array([1.0, 0.0]), np.array([0.85, 0.05])).ece.__round__(3)
    0.1
    """
    bins = np.minimum((predicted * NUM_BINS).astype(int), NUM_BINS - 1)
    counts = np.bincount(bins, minlength=NUM_BINS).astype(float)
    sums = [np.bincount(bins, weights=x, minlength=NUM_BINS) for x in (predicted, truth)]
    means = [s / np.maximum(counts, 1) for s in sums]
    return Reliability(means[0], means[1], counts)


def unweighted(odds: Floats, w_rej: float) -> Floats:
    """The probabilities that log-odds learned with rejections weighted ``w_rej`` stand for.

    The weighted loss is least where the odds are those of the truth divided by the weight, so a
    head with w_rej > 1 is wrong on purpose; this takes the weight out again.
    """
    probs: Floats = 0.5 + 0.5 * np.tanh(0.5 * (odds + math.log(w_rej)))
    return probs


@torch.inference_mode()
def products(
    target: PreTrainedModel, drafter: PreTrainedModel, head: AcceptanceHead, texts: Sequence[Text],
    *, length: int = 8, num_chains: int = 256, temperature: float = 1.0, seed: int = 0,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Drafts from random places of the texts: predicted log-odds and true min(1, p/q), [n, length].

    The products along a row are what the rule of SpecDec++ compares with its threshold, and the
    probability that the draft stands that far.
    """
    rng = np.random.default_rng(seed)
    picks = [texts[int(i)] for i in rng.integers(0, len(texts), num_chains)]
    prefixes = [list(t.tokens[: int(rng.integers(t.start, len(t.tokens)))]) for t in picks]
    drafts = continue_prompts(
        drafter, prefixes, [temperature] * num_chains, max_new_tokens=length, eos_token_id=-1,
        seed=seed,
    )  # fmt: skip
    chains = [Text((*a, *b), len(a)) for a, b in zip(prefixes, drafts, strict=True)]
    odds, truth = torch.zeros(num_chains, length), torch.zeros(num_chains, length)
    for group in groups(chains, 4096):
        chosen = [chains[i] for i in group]
        odds[group], truth[group] = (
            x.view(len(group), length) for x in _judged(target, drafter, head, chosen, temperature)
        )
    return odds.double().numpy(), truth.double().numpy()


def _judged(
    target: PreTrainedModel, drafter: PreTrainedModel, head: AcceptanceHead, chains: Sequence[Text],
    temperature: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Of every drafted token of the chains: predicted log-odds, and min(1, p/q)."""
    tokens, at = pad(chains)
    drawn = tokens.flatten()[at + 1]
    mass = []
    for model in (target, drafter):
        ids, places = tokens.to(model.device), at.to(model.device)
        probs = distributions_of(
            head_logits(model, answer_hidden(model, ids, places)), temperature
        ).cpu()
        mass.append(probs[torch.arange(len(drawn)), drawn])
    hidden = answer_hidden(drafter, tokens.to(drafter.device), (at + 1).to(drafter.device))
    truth = (mass[0] / mass[1].clamp(min=1e-12)).clamp(max=1.0)
    return head(hidden.float().cpu()), truth


def plot_reliability(curves: dict[str, Reliability], path: Path) -> None:
    """Mean true over mean predicted acceptance, by bin, for each curve; a PNG.

    Raises DraftwiseError where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DraftwiseError("plots need matplotlib: pip install 'draftwise[bench]'") from error
    figure = Figure(figsize=(5.2, 4.8), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="calibrated")
    for (name, curve), colour in zip(curves.items(), ("#0072b2", "#d55e00"), strict=False):
        seen = curve.counts > 0
        sizes = 12 + 300 * curve.counts[seen] / curve.counts.sum()
        label = f"{name}, ECE {curve.ece:.3f}"
        axes.plot(curve.predicted[seen], curve.truth[seen], color=colour, label=label)
        axes.scatter(curve.predicted[seen], curve.truth[seen], s=sizes, color=colour, alpha=0.5)
    axes.set(xlabel="predicted acceptance", ylabel="true acceptance", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=150)
