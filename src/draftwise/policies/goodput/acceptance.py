"""How often drafted tokens are accepted, in this request and of late: rates of every drafter."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from draftwise.policies.state import Kept
from draftwise.types import Floats

PRIOR = 0.55
"""Acceptance that a drafter is granted of which nothing is known."""

PRIOR_WEIGHT = 2.0
"""How many alphas a prior counts for."""

POOL_WEIGHT = 4.0
"""How many alphas the prior counts for against those of all LM drafters together."""

GOOD_POOL = 0.2
"""Mean acceptance of all LM drafters from which on an unknown one is granted the prior."""

FAST_DISCOUNT = 0.8
"""What each alpha loses by the next in the rate that forgets fast: it remembers some five."""

FAST_ODDS = math.log(0.12 / 0.88)
"""How little the fast rate is believed before it has predicted better (log odds)."""

ERROR_WEIGHT = 3.0
"""Log odds for each unit of squared error that one rate made and the other did not."""

_DEN, _ERROR, _FAST_ERROR = 1, 4, 5  # rows of a table: num, den; the fast num, den; both errors
_NUMS, _DENS = slice(0, 4, 2), slice(1, 4, 2)


class Rates(Kept):
    """How often each LM drafter's tokens are accepted, on this text and of late; all at once.

    Source: this project's own; the two memories are weighted as in Hedge.
    Update: by drafter num, den <- g num + w alpha, g den + w for each alpha of weight w, once with
        the slow g = ``discount`` and once with the fast 0.8; what is not scored fades by the slow g
        for each emitted token. rate = (num + n e) / (den + n), with e the drafter's prior and n its
        weight (of the fast rate 2). Where nothing is remembered of drafters, an unknown one is
        granted less as all fail: e = prior * min(1, m / 0.2), m = (4 prior + pool num) / (4 + pool
        den), the pool's num and den adding up all drafters' alphas.
    State: [6, D] num, den slow, num, den fast, squared errors of slow and fast; the pool's num and
        den; priors and their weights.

    >>> rates = Rates(num_drafters=2, discount=0.97)
    >>> rates.add(0, [0.0] * 28)
    >>> rates.of().round(3).tolist()
    [0.02, 0.189]
    """

    KEPT = ("_table", "_pool", "_prior", "_prior_weight")

    def __init__(self, num_drafters: int, discount: float, prior: float = PRIOR) -> None:
        self._discount = discount
        self._prior: Floats = np.full(num_drafters, prior)
        self._prior_weight: Floats = np.full(num_drafters, PRIOR_WEIGHT)
        self._table: Floats = np.zeros((6, num_drafters))
        self._pool = [0.0, 0.0]
        self._weigh()

    def expect(self, priors: Floats, weights: Floats) -> None:
        """[D] what is believed of each drafter before it is scored, and for how many alphas."""
        self._prior, self._prior_weight = priors, weights
        self._weigh()

    def of(self) -> Floats:
        """[D] the slow and the fast rate, weighted by how well each has predicted."""
        granted = self._granted()
        held = self._held if granted == 1.0 else self._held * granted
        return _weighted(self._table, held, self._weights)

    @staticmethod
    def of_rows(rows: Sequence[Rates]) -> Floats:
        """[B, D] the same of many requests at once."""
        tables, held, weights = (
            np.concatenate([getattr(row, part) for row in rows])
            .reshape(len(rows), -1, len(rows[0]._prior))
            .swapaxes(0, 1)
            for part in ("_table", "_held", "_weights")
        )
        granted = np.array([row._granted() for row in rows])
        return _weighted(tables, held * granted[:, np.newaxis], weights)

    def weights(self) -> Floats:
        """[D] how many alphas each slow rate rests on, its prior included."""
        weights: Floats = self._table[_DEN] + self._prior_weight
        return weights

    def fade(self, num_emitted: int, scored: Collection[int]) -> None:
        """So many tokens were emitted, and all drafters but these were not scored on them."""
        kept = self._discount**num_emitted
        self._pool = [kept * part for part in self._pool]
        fading = [kept] * len(self._prior)
        for drafter in scored:
            fading[drafter] = 1.0
        self._table *= fading

    def add(self, drafter: int, alphas: Sequence[float], weight: float = 1.0) -> None:
        """A drafter's alphas, in text order; each judges both rates before it moves them."""
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

    def forget_what_follows(self) -> None:
        """What was loaded has priors of its own."""
        self._weigh()

    def _weigh(self) -> None:
        """[2, D] what priors count for in the slow and the fast rate, and that times the priors."""
        self._weights: Floats = np.stack(
            [self._prior_weight, np.full_like(self._prior, PRIOR_WEIGHT)]
        )
        self._held: Floats = self._weights * self._prior

    def _granted(self) -> float:
        """The share of its prior that an unknown drafter is granted."""
        num, den = self._pool
        return min(1.0, (POOL_WEIGHT * PRIOR + num) / (POOL_WEIGHT + den) / GOOD_POOL)


def _weighted(table: Floats, held: Floats, weights: Floats) -> Floats:
    """[.., D] rates of tables [6, .., D] and of what their priors [2, .., D] count for."""
    slow, fast = (table[_NUMS] + held) / (table[_DENS] + weights)
    half_odds = 0.5 * FAST_ODDS + (0.5 * ERROR_WEIGHT) * (table[_ERROR] - table[_FAST_ERROR])
    share = 0.5 + 0.5 * np.tanh(half_odds)
    rates: Floats = slow + share * (fast - slow)
    return rates
