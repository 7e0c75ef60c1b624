"""Learning across requests: each drafter's acceptance, predicted from the text."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwise.controller.rates import PRIOR, Bins, MatchTable
from draftwise.types import Floats, Ints

NUM_FEATURES = 1024  # number of hashed token features; a constant one is added
WINDOW = 128  # number of last tokens of a text that its features describe
PRIOR_VARIANCE = 5.0  # prior variance of a drafter's log odds
_BIAS = math.log(PRIOR / (1.0 - PRIOR))
_SURE = 0.01  # predictions are clipped to this and 1 - this
_PROBIT = math.pi / 8.0  # MacKay's approximation of a logistic averaged over a Gaussian


@dataclass(frozen=True, slots=True)
class TextFeatures:
    """The n nonzero features of a text: square roots of hashed token counts, of unit norm."""

    ids: Ints
    values: Floats
    squares: Floats


def features(tokens: Sequence[int], label: str = "") -> TextFeatures:
    """Features of a text's last tokens and of the request's label, and a constant feature.

    The constant weighs as much as all others: new texts are expected to be like most texts.

    >>> features([5, 5, 5, 5]).squares.round(3).tolist()
    [0.5, 0.5]
    """
    hashed = np.asarray(tokens, dtype=np.int64) * 2654435761 % 2**32 % NUM_FEATURES
    counts = np.bincount(hashed, minlength=NUM_FEATURES + 1)
    if label:
        counts[zlib.crc32(label.encode()) % NUM_FEATURES] += 16
    counts[NUM_FEATURES] = counts.sum()
    ids = np.flatnonzero(counts)
    values = np.sqrt(counts[ids] / max(int(counts.sum()), 1))
    return TextFeatures(ids, values, values * values)


class Experience:
    """Statistics of all requests: acceptance by drafter and text, by confidence, and by match.

    Source: Bayesian logistic regression for each drafter, with a Gaussian of diagonal covariance
        and one assumed-density step per observation (as in Graepel et al. 2010, with a logistic
        link).
    Update: z = b + w x for the features x of the text's end; an alpha a of weight n moves w by V x
        n (a - p) / (1 + n h v) and lowers the variances, 1/V += n h x^2, with p = sigma(z), h = p
        (1 - p), v = V x^2. Prediction: p averaged over z's uncertainty, and its weight in alphas, 1
        / (1/20 + p (1 - p) v). A drafter's weights are reset once they predict worse than the prior
        by e^6 (a one-sided cumulative sum).
    State: means and variances [D, F]; cumulative sums [D]; confidence bins by LM drafter; match
        tables by retrieval drafter; numbers of tokens and answers. Its size depends only on D.
    """

    def __init__(self, names: Sequence[str]) -> None:
        num = len(names)
        self.names = list(names)
        self._mean: Floats = np.zeros((num, NUM_FEATURES + 1))
        self._variance: Floats = np.full((num, NUM_FEATURES + 1), PRIOR_VARIANCE)
        self._cusums: Floats = np.zeros(num)
        self.bins: dict[str, Bins] = {}
        self.tables: dict[str, MatchTable] = {}
        self.num_tokens, self.num_answers = 256.0, 1.0

    @property
    def answer_tokens(self) -> float:
        return self.num_tokens / self.num_answers

    def predict(self, seen: TextFeatures) -> tuple[Floats, Floats]:
        """[D] predicted acceptance on a text, and [D] the weight of each prediction in alphas."""
        variance = self._variance.take(seen.ids, axis=1) @ seen.squares
        logit = _BIAS + self._mean.take(seen.ids, axis=1) @ seen.values
        rates = 1.0 / (1.0 + np.exp(-logit / np.sqrt(1.0 + _PROBIT * variance)))
        rates = rates.clip(_SURE, 1.0 - _SURE)
        return rates, 1.0 / (1.0 / 20.0 + rates * (1.0 - rates) * variance)

    def add(self, drafter: int, seen: TextFeatures, alpha: float, num: float) -> None:
        """Learn from a drafter's mean alpha over ``num`` tokens of a text."""
        mean, variance = self._mean[drafter], self._variance[drafter]
        # neighbouring alphas are correlated: four count as one observation
        old, own, weight = variance.take(seen.ids), mean.take(seen.ids), 0.25 * num
        spread, logit = float(old @ seen.squares), _BIAS + float(own @ seen.values)
        if self._needs_reset(drafter, logit, spread, alpha, weight):
            mean[:], variance[:] = 0.0, PRIOR_VARIANCE
            old, own, spread, logit = variance.take(seen.ids), 0.0 * own, PRIOR_VARIANCE, _BIAS
        p = 1.0 / (1.0 + math.exp(-logit))
        curvature = weight * max(p * (1.0 - p), _SURE)
        step = weight * (alpha - p) / (1.0 + curvature * spread)
        mean[seen.ids] = own + step * (old * seen.values)
        variance[seen.ids] = old / (1.0 + (curvature * seen.squares) * old)

    def _needs_reset(
        self, drafter: int, logit: float, spread: float, alpha: float, weight: float
    ) -> bool:
        """Whether the cumulative sum of log odds against the prior has reached the threshold."""
        p = 1.0 / (1.0 + math.exp(-logit / math.sqrt(1.0 + _PROBIT * spread)))
        p = min(max(p, _SURE), 1.0 - _SURE)
        odds = alpha * math.log(PRIOR / p) + (1.0 - alpha) * math.log((1.0 - PRIOR) / (1.0 - p))
        total = max(0.0, float(self._cusums[drafter]) + weight * odds)
        needs_reset = total > 6.0
        self._cusums[drafter] = 0.0 if needs_reset else total
        return needs_reset

    def state(self) -> dict[str, Any]:
        """The statistics by drafter, without features that were never seen."""
        return {
            "answers": [self.num_tokens, self.num_answers],
            "drafters": {name: self._drafter_state(row) for row, name in enumerate(self.names)},
            "bins": {name: bins.state() for name, bins in self.bins.items()},
            "tables": {name: table.state() for name, table in self.tables.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the statistics of these drafters; ValueError, and no change, if damaged."""
        fresh = Experience(self.names)
        if set(state) != {"answers", "drafters", "bins", "tables"}:
            raise ValueError(f"it holds {sorted(state)}, not the statistics of requests")
        fresh.num_tokens, fresh.num_answers = (float(part) for part in state["answers"])
        if not (1 <= fresh.num_answers < math.inf and 0 <= fresh.num_tokens < math.inf):
            raise ValueError("its numbers of tokens and answers are out of range")
        for row, name in enumerate(self.names):
            if name in state["drafters"]:
                fresh._load_drafter(row, state["drafters"][name])
        kept = set(self.names)
        fresh.bins = {n: Bins.of(s) for n, s in state["bins"].items() if n in kept}
        fresh.tables = {n: MatchTable.of(s) for n, s in state["tables"].items() if n in kept}
        vars(self).update(vars(fresh))

    def _drafter_state(self, row: int) -> dict[str, Any]:
        ids = np.flatnonzero(self._variance[row] != PRIOR_VARIANCE)
        return {
            "features": ids.tolist(),
            "mean": self._mean[row, ids].round(5).tolist(),
            "variance": self._variance[row, ids].round(5).tolist(),
            "surprise": float(self._cusums[row]),
        }

    def _load_drafter(self, row: int, state: Mapping[str, Any]) -> None:
        ids = np.array(state["features"], dtype=np.int64)
        mean, variance = (np.array(state[key], dtype=np.float64) for key in ("mean", "variance"))
        surprise = float(state["surprise"])
        is_fit = ids.shape == mean.shape == variance.shape == (len(set(ids.tolist())),)
        if not is_fit or (len(ids) and not (0 <= ids.min() <= ids.max() <= NUM_FEATURES)):
            raise ValueError("its features are inconsistent")
        if not (np.isfinite(mean).all() and 0.0 <= surprise < math.inf):
            raise ValueError("one of its numbers is not finite")
        if not ((variance >= 0) & (variance <= PRIOR_VARIANCE)).all():
            raise ValueError("one of its variances is out of range")
        self._mean[row, ids], self._variance[row, ids] = mean, variance
        self._cusums[row] = surprise


class Recall:
    """One request's view of an ``Experience``.

    private: the request uses the shared statistics but does not update them. expected: the
    prediction for its current text. bins, tables: shared, or copies if private.
    """

    def __init__(
        self, experience: Experience, prompt: Sequence[int], label: str = "", private: bool = False
    ) -> None:
        self.experience, self._label, self._private = experience, label, private
        if not private:
            experience.num_answers += 1
        seen = deepcopy(experience) if private else experience
        self.bins, self.tables = seen.bins, seen.tables
        self._tokens, self._num_new = list(prompt[-WINDOW:]), 0
        self._seen = features(self._tokens, label)
        self.expected = experience.predict(self._seen)

    def saw_tokens(self, tokens: Sequence[int]) -> bool:
        """Add tokens of the answer; return whether ``expected`` has changed."""
        self._tokens += tokens
        self._num_new += len(tokens)
        if not self._private:
            self.experience.num_tokens += len(tokens)
        if self._num_new < 32:
            return False
        del self._tokens[:-WINDOW]
        self._num_new, self._seen = 0, features(self._tokens, self._label)
        self.expected = self.experience.predict(self._seen)
        return True

    def add(self, drafter: int, alphas: Sequence[float], weight: float) -> None:
        if alphas and not self._private:
            mean = sum(alphas) / len(alphas)
            self.experience.add(drafter, self._seen, mean, weight * len(alphas))

    def add_matches(self, name: str, alphas: Sequence[float], matches: Sequence[int]) -> None:
        if name not in self.tables:
            self.tables[name] = MatchTable()
        self.tables[name].add(alphas, matches)
