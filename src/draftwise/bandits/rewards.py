"""Rewards: the value of an outcome, in [0, 1].

A reward is any callable from ``Outcome`` to a float. ``nan`` means that the value is unknown (too
few alphas, no clock, an unplayed plan); feedback then counts the plan as not seen. A reward needs
the alphas of as many positions as the plan is long, which panoramic feedback waits for, unless its
attribute ``looks_ahead`` is false: then it needs only those of the round. The estimators of
expected tokens also accept exact number types, so that tests can enumerate with fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import nan

from draftwise.checks import probability, string
from draftwise.types import Outcome


def tokens_by_products(alphas: Sequence[float], length: int) -> float:
    """Expected emitted tokens of a draft of ``length``, as products of alphas along the text.

    Source: HedgeSpec, Theorem 3: sum_{k=1}^{K+1} k (1 - a_k) prod_{j<k} a_j with a_{K+1} = 0, which
        telescopes to 1 + sum_{k=1}^{K} prod_{j<=k} a_j.
    Slightly biased: the text is drawn from p, an accepted prefix from min(p, q). The bias measured
    on real models is under 1%, and the variance is lower than that of ``tokens_by_ratios``. ``nan``
    for fewer than ``length`` alphas, unless one of them is 0.

    >>> tokens_by_products([0.5, 0.5, 0.9], length=2)
    1.75
    >>> tokens_by_products([0.5, 0.0], length=8), tokens_by_products([0.5], length=2)
    (1.5, nan)
    """
    tokens: float = 1
    survival: float = 1
    for alpha in alphas[:length]:
        survival = survival * alpha
        tokens = tokens + survival
    return tokens if len(alphas) >= length or survival == 0 else nan


def tokens_by_ratios(alphas: Sequence[float], ratios: Sequence[float], length: int) -> float:
    """Expected emitted tokens of a draft of ``length``, unbiased: prefixes weighted by min(1, q/p).

    1 + sum_{m=1}^{K} (prod_{j<m} r_j) a_m, with r_j = min(1, q/p) of the text's token at j:
    weighted by r_j, text drawn from p follows min(p, q), the distribution of accepted tokens.

    Source: this project's correction of HedgeSpec, Theorem 3.
    ``nan`` as for ``tokens_by_products``.

    >>> tokens_by_ratios([0.5, 0.5, 0.9], [1.0, 0.2, 0.0], length=2)
    2.0
    """
    tokens: float = 1
    survival: float = 1
    for alpha, ratio in zip(alphas[:length], ratios, strict=False):
        tokens = tokens + survival * alpha
        survival = survival * ratio
    return tokens if len(alphas) >= length or survival == 0 else nan


def tokens_by_verdict(alphas: Sequence[float], num_drafted: int, num_accepted: int) -> float:
    """Expected emitted tokens of a played draft, from its own verification.

    Token j is accepted with probability alpha_j if all tokens before it are, so 1 + the sum of
    alpha_j through the first rejection has the same mean as the count of emitted tokens, and less
    variance. (Products would be biased: how many alphas are known depends on the draws.) With too
    few alphas, the result is the count.

    >>> tokens_by_verdict([0.75, 0.5], num_drafted=4, num_accepted=1)
    2.25
    >>> tokens_by_verdict([], num_drafted=4, num_accepted=1)
    2
    """
    reached = min(num_accepted + 1, num_drafted)
    if len(alphas) < reached:
        return 1 + num_accepted
    return 1 + sum(alphas[:reached])


class Length:
    """Accepted tokens over the longest length.

    Source: MetaSD's block efficiency BE = N_acc / N_max (section 2.3); one minus it is the loss (L
        + 1 - Y) / L of BanditSpec eq. (6), whose Y counts the bonus token; also TapOut's r_simple =
        |Y| / gamma (section 3.2), hence its second registered name ``simple``.
    Differs: an unplayed plan is valued by its expectation (HedgeSpec, Theorem 3).
    """

    def __call__(self, outcome: Outcome) -> float:
        return _accepted(outcome) / max(outcome.max_length, 1)


class Blend:
    """The normalised count blended with the acceptance rate, which rejected tokens lower.

    Source: TapOut, section 3.2: alpha |Y| / gamma + (1 - alpha) |Y| / |X|, alpha 0.5 (in [0, 1]); X
        are the drafted tokens, Y the accepted ones, gamma is the longest length.
    Differs: (1) an empty draft has the rate 0; (2) an unplayed plan with a fixed length is valued
        by its expectation (HedgeSpec, Theorem 3); any other unplayed plan is ``nan``.
    """

    def __init__(self, alpha: float = 0.5) -> None:
        self._alpha = probability("alpha", alpha)

    def __call__(self, outcome: Outcome) -> float:
        num_drafted: float | None = outcome.num_drafted
        if num_drafted is None:
            num_drafted = outcome.plan.length if outcome.plan.rule == "fixed" else nan
        accepted = _accepted(outcome)
        rate = accepted / num_drafted if num_drafted != 0 else 0.0
        return self._alpha * accepted / max(outcome.max_length, 1) + (1.0 - self._alpha) * rate


def _accepted(outcome: Outcome) -> float:
    if outcome.num_accepted is not None:
        return outcome.num_accepted
    return tokens_by_products(outcome.alphas.tolist(), outcome.plan.length) - 1.0


class Divergence:
    """Mean acceptance probability over the draft, the rejected tail included: block divergence.

    Source: MetaSD, eq. (4): 1/N_max sum_{j<N_max} (1 - TV(p, q)), where 1 - TV is alpha.
    Differs: positions that the plan does not draft add nothing to the sum, while N_max stays the
        longest length among the plans, so plans of different lengths are on one scale.
    """

    def __call__(self, outcome: Outcome) -> float:
        num = outcome.plan.length if outcome.num_drafted is None else outcome.num_drafted
        alphas = outcome.drafted_alphas.tolist()[:num]
        return math.fsum(alphas) / max(outcome.max_length, 1) if len(alphas) == num else nan


class Acceptance:
    """Mean acceptance probability over the round's positions.

    Source: HedgeSpec, section 3.3: 1 - f_t with f_t = 1 - alpha_t; a chunk's mean (appendix B.3).
    Differs: plans of one drafter differ only by how many of the positions they would draft.
    """

    looks_ahead = False

    def __call__(self, outcome: Outcome) -> float:
        alphas = outcome.alphas.tolist()[: outcome.plan.length]
        return math.fsum(alphas) / len(alphas) if alphas else nan


class ExpectedLength:
    """Expected emitted tokens over the most that a round can emit.

    Source: HedgeSpec, Theorem 3 and the loss f_t = 1 - estimate / (K + 1) of section 3.3; this is 1
        - f_t. ``estimator=products`` is as printed, ``exact`` the unbiased weighting by min(1, q/p)
        of the realised tokens.
    Differs: (1) K + 1 is that of the longest plan, so plans of different lengths are on one scale;
        (2) the played plan is valued by ``tokens_by_verdict``, from its verification.
    """

    def __init__(self, estimator: str = "products") -> None:
        string("estimator", estimator, ("products", "exact"))
        self._is_exact = estimator == "exact"

    def __call__(self, outcome: Outcome) -> float:
        alphas, length = outcome.alphas.tolist(), outcome.plan.length
        if outcome.num_drafted is not None and outcome.num_accepted is not None:
            tokens = tokens_by_verdict(alphas, outcome.num_drafted, outcome.num_accepted)
        elif self._is_exact:
            tokens = tokens_by_ratios(alphas, outcome.ratios.tolist(), length)
        else:
            tokens = tokens_by_products(alphas, length)
        return tokens / (outcome.max_length + 1)


class Throughput:
    """Emitted tokens per second, as a share of a nearly constant bound.

    Source: BanditSpec, section 6.2: the reward is the tokens generated per second.
    Update: bound = (L + 1) / seconds of the first round, L the longest length: no rate exceeds that
        of the longest draft in the shortest time; value = min(1, rate / bound). Only if a rate
        exceeds the bound (the first round was slow) does it double, once a round.
    Differs: the paper does not scale the reward, but its radius needs values in [0, 1]. A bound
        that followed the best rate would make values depend on the order of plays; a timing outlier
        at most doubles this one.
    State: ``bound`` in tokens per second; 0 before the first round.
    """

    looks_ahead = False

    def __init__(self) -> None:
        self.bound = 0.0

    def __call__(self, outcome: Outcome) -> float:
        if outcome.num_accepted is None or outcome.seconds <= 0.0:
            return nan
        rate = (outcome.num_accepted + 1) / outcome.seconds
        if self.bound == 0.0:
            self.bound = (outcome.max_length + 1) / outcome.seconds
        elif rate > self.bound:
            self.bound *= 2.0
        return min(1.0, rate / self.bound)
