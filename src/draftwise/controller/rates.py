"""Acceptance rates of drafted tokens: by LM drafter, by confidence, and by match length.

``Rates`` are those of one text, ``Experience`` those of all requests, predicted from the text.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from draftwise.types import Floats, Ints, TreeShape

PRIOR = 0.55  # prior acceptance of a drafter
PRIOR_WEIGHT = 2.0  # weight of a prior, in alphas
FAST_DISCOUNT = 0.8  # discount of the fast rate per alpha: an effective memory of five alphas
_NUMS, _DENS = slice(0, 4, 2), slice(1, 4, 2)  # table rows of both rates


class Rates:
    """Acceptance rates of all LM drafters on this text, each a mix of a slow and a fast average.

    Source: this project; the two averages are weighted as in Hedge.
    Update: per drafter, num <- g num + w alpha and den <- g den + w for each alpha of weight w,
        with g = ``discount`` for the slow average and 0.8 for the fast one; drafters without scores
        are discounted by the slow g for each emitted token. rate = (num + n e) / (den + n), with e
        the drafter's prior and n its weight (2 for the fast rate). If all drafters fail, priors are
        reduced: e = prior * min(1, m / 0.2), m = (4 * 0.55 + pool num) / (4 + pool den), where the
        pool sums the alphas of all drafters.
    State: [6, D] num, den slow, num, den fast, squared errors of both; the pool's; priors, weights.

    >>> rates = Rates(num_drafters=2, discount=0.97)
    >>> rates.add(0, [0.0] * 28)
    >>> rates.of().round(3).tolist()
    [0.02, 0.189]
    """

    def __init__(self, num_drafters: int, discount: float, prior: float = PRIOR) -> None:
        self._discount = discount
        self._prior: Floats = np.full(num_drafters, prior)
        self._prior_weight: Floats = np.full(num_drafters, PRIOR_WEIGHT)
        self._table: Floats = np.zeros((6, num_drafters))
        self._pool = [0.0, 0.0]
        self._weigh_priors()

    def expect(self, priors: Floats, weights: Floats) -> None:
        """Set the priors [D] and their weights [D], in alphas."""
        self._prior, self._prior_weight = priors, weights
        self._weigh_priors()

    def of(self) -> Floats:
        """[D] mean of the slow and the fast rate, weighted by how well each has predicted."""
        granted, table = self._granted(), self._table
        held = self._held if granted == 1.0 else self._held * granted
        slow, fast = (table[_NUMS] + held) / (table[_DENS] + self._weights)
        # log odds of the fast rate: at first 0.12 to 0.88, and 3 per unit of squared errors
        half_odds = 0.5 * math.log(0.12 / 0.88) + 1.5 * (table[4] - table[5])
        rates: Floats = slow + (0.5 + 0.5 * np.tanh(half_odds)) * (fast - slow)
        return rates

    def weights(self) -> Floats:
        """[D] weight of each slow rate in alphas, including its prior."""
        weights: Floats = self._table[1] + self._prior_weight
        return weights

    def fade(self, num_emitted: int, scored: Collection[int]) -> None:
        """Discount all drafters except ``scored`` by ``num_emitted`` tokens."""
        kept = self._discount**num_emitted
        self._pool = [kept * part for part in self._pool]
        fading = [kept] * len(self._prior)
        for drafter in scored:
            fading[drafter] = 1.0
        self._table *= fading

    def add(self, drafter: int, alphas: Sequence[float], weight: float = 1.0) -> None:
        """Add a drafter's alphas in text order; each one first updates both rates' errors."""
        num, den, fast_num, fast_den, error, fast_error = self._table[:, drafter].tolist()
        g, own = self._discount, float(self._prior_weight[drafter])
        prior = float(self._prior[drafter]) * self._granted()
        held, fast_held = own * prior, PRIOR_WEIGHT * prior
        for alpha in alphas:
            slow = (num + held) / (den + own) - alpha
            fast = (fast_num + fast_held) / (fast_den + PRIOR_WEIGHT) - alpha
            error = g * error + weight * slow * slow
            fast_error = g * fast_error + weight * fast * fast
            num = g * num + weight * alpha
            den = g * den + weight
            fast_num = FAST_DISCOUNT * fast_num + weight * alpha
            fast_den = FAST_DISCOUNT * fast_den + weight
        self._table[:, drafter] = num, den, fast_num, fast_den, error, fast_error
        pool_num, pool_den = self._pool
        self._pool = [pool_num + weight * sum(alphas), pool_den + weight * len(alphas)]

    def _weigh_priors(self) -> None:
        """Recompute the weights [2, D] of the slow and fast rates' priors, and weights * priors."""
        fast = np.full_like(self._prior, PRIOR_WEIGHT)
        self._weights: Floats = np.stack([self._prior_weight, fast])
        self._held: Floats = self._weights * self._prior

    def _granted(self) -> float:
        num, den = self._pool
        return min(1.0, (4.0 * PRIOR + num) / (4.0 + den) / 0.2)


CONFIDENCES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)  # edges of the nine bins of max q
BIN_DISCOUNT = 0.995  # discount of a bin's sums for each new alpha
_CENTRES = tuple((low + high) / 2 for low, high in pairwise((0.0, *CONFIDENCES, 1.0)))
_RANKS = (0.18, 0.1, 0.06, 0.05, 0.04, 0.03, 0.03)
NUM_SIBLINGS = len(_RANKS)  # maximum number of siblings of a token
_SHARES = tuple(share * (1.0 - centre) for centre in _CENTRES for share in _RANKS)
"""Prior probability that the first, second, .. sibling is accepted, by bin and rank."""
BRANCH_PRIORS = (0.0, 0.03, 0.06, 0.12, 0.2, 0.3, 0.4)
"""Prior acceptance of a retrieved token where the drafter's was rejected, by bucket of match."""
ADDED_PRIORS = (0.0, 0.25, 0.18, 0.12, 0.08, 0.04, 0.02)
"""Prior probability that a drafter's token differs from the retrieved one and is accepted."""
TREE_PRIORS = (0.18, 0.28, 0.34, 0.39, 0.43, 0.46, 0.49)
"""Prior probability that one of 1, 2, .. siblings of a rejected likeliest token is accepted."""
_NEXT = tuple(0.14 + 0.75 * (0.4 + 0.4 * centre) for centre in _CENTRES)  # prior of the next token


def bin_of(confidence: float) -> int:
    """The bin of a confidence, which is the largest probability of a token's q.

    >>> [bin_of(confidence) for confidence in (0.1, 0.2, 0.5, 0.97, 1.0)]
    [0, 1, 3, 7, 8]
    """
    return bisect_right(CONFIDENCES, confidence)


@dataclass(slots=True)
class Ratios:
    """Discounted means of alphas by row, each shrunk to a prior of ``weight`` alphas.

    num, den: discounted sums of alphas and of their weights.
    """

    priors: Sequence[float]
    weight: float = 3.0
    num: list[float] = field(init=False)
    den: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.num, self.den = [0.0] * len(self.priors), [0.0] * len(self.priors)

    def count(self, row: int, alpha: float) -> None:
        self.num[row] = BIN_DISCOUNT * self.num[row] + alpha
        self.den[row] = BIN_DISCOUNT * self.den[row] + 1.0

    def rate(self, row: int, prior: float | None = None) -> float:
        """The mean of a row; prior: replaces the row's prior."""
        prior = self.priors[row] if prior is None else prior
        return (self.num[row] + self.weight * prior) / (self.den[row] + self.weight)

    def state(self) -> dict[str, list[float]]:
        return {"num": [*self.num], "den": [*self.den]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``; ValueError, and no change, if it does not fit."""
        if set(state) != {"num", "den"}:
            raise ValueError(f"a table holds {sorted(state)}, and not num and den")
        num, den = ([float(value) for value in state[name]] for name in ("num", "den"))
        if not len(num) == len(den) == len(self.priors):
            raise ValueError(f"a table has {len(num)} rows, and not {len(self.priors)}")
        for part, whole in zip(num, den, strict=True):
            if not 0.0 <= part <= whole + 1e-6 < math.inf:
                raise ValueError(f"a table says {part} accepted out of {whole}")
        self.num, self.den = num, den


@dataclass(slots=True)
class Bins:
    """One drafter's acceptance by bin of confidence.

    own: acceptance of the token itself. after: of the next token. ranks: of its siblings, by bin
    and rank. branches: of a different, retrieved token, by match length, if the drafter's was
    rejected. added: probability that the drafter's token differs from the retrieved one and is
    accepted. firsts: acceptance of the likeliest token at each depth of a tree. others: of one of
    its siblings if it is rejected, by their number.

    >>> bins = Bins()
    >>> bins.add([0.97, 0.4], [1.0, 0.0])
    >>> round(bins.own.rate(7), 3), round(bins.after.rate(7), 3)
    (0.981, 0.549)
    """

    own: Ratios = field(default_factory=lambda: Ratios(_CENTRES))
    after: Ratios = field(default_factory=lambda: Ratios(_NEXT))
    ranks: Ratios = field(default_factory=lambda: Ratios(_SHARES))
    branches: Ratios = field(default_factory=lambda: Ratios(BRANCH_PRIORS))
    added: Ratios = field(default_factory=lambda: Ratios(ADDED_PRIORS))
    firsts: Ratios = field(default_factory=lambda: Ratios((0.0,)))
    others: Ratios = field(default_factory=lambda: Ratios(TREE_PRIORS))

    def add(self, confidences: Sequence[float], alphas: Sequence[float]) -> None:
        """Add each alpha to its token's bin and, as a next token's, to the previous token's bin.

        confidences: NaN for tokens that another drafter wrote.
        """
        before = -1
        for confidence, alpha in zip(confidences, alphas, strict=True):
            if confidence != confidence:
                before = -1
                continue
            if before >= 0:
                self.after.count(before, alpha)
            before = bin_of(confidence)
            self.own.count(before, alpha)

    def add_siblings(self, siblings: Sequence[tuple[float, int, bool]]) -> None:
        """Add whether each sibling was accepted; siblings: as in ``RoundFacts``."""
        for confidence, rank, is_kept in siblings:
            place = bin_of(confidence) * NUM_SIBLINGS + min(rank, NUM_SIBLINGS) - 1
            self.ranks.count(place, is_kept)

    def siblings(self, index: int) -> list[float]:
        """Acceptance of the first, second, .. sibling of a token in this bin."""
        places = range(index * NUM_SIBLINGS, (index + 1) * NUM_SIBLINGS)
        return [self.ranks.rate(place) for place in places]

    def add_tree(self, shape: TreeShape, length: int, num_accepted: int, num_first: int) -> None:
        """Add a verified tree: its accepted depth, ``num_first`` of it by the likeliest tokens."""
        judged = num_accepted + (num_accepted < depth_of(shape, length))
        row = num_siblings(shape, length) - 1
        for number in range(judged):
            self.firsts.count(0, number < num_first)
            if number >= num_first and row >= 0:
                self.others.count(row, number < num_accepted)

    def of_tree(self, shape: TreeShape, length: int, rate: float) -> float:
        """Acceptance at each depth of a tree; rate: prior acceptance of the likeliest token."""
        first, num = self.firsts.rate(0, rate), num_siblings(shape, length)
        return first + (1.0 - first) * self.others.rate(num - 1) if num else first

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).state() for name in self.__slots__}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``; ValueError if it does not fit."""
        for name in self.__slots__:
            getattr(self, name).load(state[name])


def depth_of(shape: TreeShape, length: int) -> int:
    """Maximum depth of a tree that is grown to ``length`` levels."""
    return min(length, shape.total_tokens)


def num_siblings(shape: TreeShape, length: int) -> int:
    """Mean number of siblings of a token in a tree, rounded.

    >>> num_siblings(TreeShape(4, 16), 5), num_siblings(TreeShape(1, 4), 4)
    (2, 0)
    """
    width = min(shape.top_k, round(shape.total_tokens / depth_of(shape, length)))
    return min(width - 1, NUM_SIBLINGS)


MATCH_PRIOR = (0.05, 0.25, 0.45, 0.6, 0.75, 0.85, 0.95)
"""Prior acceptance of retrieval, by bucket of the matched suffix: none, 1, 2, 3-4, 5-8, 9-16 and 17
or more tokens."""
NUM_MATCHES = len(MATCH_PRIOR)
_LONGEST = (0, 1, 2, 4, 8, 16)  # match of each bucket but the last


def bucket_of(match: int) -> int:
    """The bucket of a match's length.

    >>> [bucket_of(match) for match in (0, 1, 3, 4, 5, 16, 17)]
    [0, 1, 3, 3, 4, 5, 6]
    """
    return bisect_left(_LONGEST, match)


@dataclass(slots=True)
class MatchTable(Ratios):
    """One retrieval drafter's acceptance by bucket of the match."""

    priors: Sequence[float] = MATCH_PRIOR
    weight: float = 4.0

    @property
    def rates(self) -> list[float]:
        return [self.rate(row) for row in range(NUM_MATCHES)]

    def add(self, alphas: Sequence[float], matches: Sequence[int]) -> None:
        """Add each alpha to the bucket of its match length; alphas without a match are ignored."""
        for alpha, match in zip(alphas, matches, strict=True):
            if match > 0:
                self.count(bucket_of(match), alpha)

    def ladder(self, num: int) -> list[float]:
        """Acceptance of a token after a match of 1, 2, .. ``num`` tokens.

        >>> [round(alpha, 3) for alpha in MatchTable().ladder(5)]
        [0.25, 0.45, 0.6, 0.6, 0.75]
        """
        _, one, two, four, eight, sixteen, more = self.rates
        rungs = [one, two, four, four, *[eight] * 4, *[sixteen] * 8, *[more] * (num - 16)]
        return rungs[:num]


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
        fresh.bins = {name: Bins() for name in state["bins"] if name in kept}
        fresh.tables = {name: MatchTable() for name in state["tables"] if name in kept}
        for kind, made in (("bins", fresh.bins), ("tables", fresh.tables)):
            for name, table in made.items():
                table.load(state[kind][name])
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
