"""How good predicted probabilities are: divergence, calibration, and a plot of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.install import hint
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


def plot_reliability(curves: dict[str, Reliability], path: Path) -> None:
    """Mean true over mean predicted acceptance, by bin, for each curve; a PNG.

    Raises DraftwiseError where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DraftwiseError(f"plots need matplotlib: {hint('bench')}") from error
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
