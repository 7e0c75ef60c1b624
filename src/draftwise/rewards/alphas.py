"""Rewards of acceptance probabilities: block divergence, acceptance, expected length."""

from __future__ import annotations

import math
from typing import ClassVar

from draftwise.checks import string
from draftwise.rewards import NAN
from draftwise.rewards.estimators import tokens_by_products, tokens_by_ratios, tokens_by_verdict
from draftwise.types import Outcome


class Divergence:
    """Mean acceptance probability over the draft, the rejected tail included: block divergence.

    Source: MetaSD, eq. (4): 1/N_max sum_{j<N_max} (1 - TV(p, q)), where 1 - TV is alpha.
    Differs: positions that the plan does not draft add nothing to the sum, while N_max stays the
        longest length among the plans, so plans of different lengths are on one scale.
    State: none. Cost: O(length). Errors: none; ``nan`` if not every drafted position has an alpha.

    >>> from draftwise.types import Plan
    >>> import numpy as np
    >>> alphas = np.array([0.5, 0.25])
    >>> Divergence()(Outcome(Plan("a", 2), 4, alphas, alphas, alphas, 2, 0))
    0.1875
    """

    looks_ahead: ClassVar[bool] = True

    def __call__(self, outcome: Outcome) -> float:
        """Sum of the drafted alphas / longest length."""
        num = outcome.plan.length if outcome.num_drafted is None else outcome.num_drafted
        alphas = outcome.drafted_alphas.tolist()[:num]
        return math.fsum(alphas) / max(outcome.max_length, 1) if len(alphas) == num else NAN


class Acceptance:
    """Mean acceptance probability over the round's positions.

    Source: HedgeSpec, section 3.3: 1 - f_t with f_t = 1 - alpha_t; over a chunk its mean
        (appendix B.3).
    Differs: plans of one drafter differ only by how many of the positions they would draft.
    State: none. Cost: O(length). Errors: none; ``nan`` without any alpha, as for ``none``.

    >>> from draftwise.types import Plan
    >>> import numpy as np
    >>> alphas = np.array([0.5, 0.25, 0.0])
    >>> Acceptance()(Outcome(Plan("a", 2), 4, alphas, alphas, alphas))
    0.375
    """

    looks_ahead: ClassVar[bool] = False

    def __call__(self, outcome: Outcome) -> float:
        """Mean of the alphas that the plan's length covers."""
        alphas = outcome.alphas.tolist()[: outcome.plan.length]
        return math.fsum(alphas) / len(alphas) if alphas else NAN


class ExpectedLength:
    """Expected emitted tokens over the most that a round can emit.

    Source: HedgeSpec, Theorem 3 and the loss f_t = 1 - estimate / (K + 1) of section 3.3; this is
        1 - f_t. ``estimator=products`` is as printed, ``exact`` the unbiased weighting by
        min(1, q/p) of the realised tokens.
    Differs: (1) K + 1 is that of the longest plan, so plans of different lengths are on one scale;
        (2) a plan that played and of which only its own verification is known is valued by
        ``tokens_by_verdict``.
    State: none. Cost: O(length).
    Errors: ValueError for an unknown estimator; ``nan`` if the alphas do not reach.

    >>> from draftwise.types import Plan
    >>> import numpy as np
    >>> alphas = np.array([0.5, 0.5])
    >>> ExpectedLength()(Outcome(Plan("a", 2), 2, alphas, alphas, alphas)) == 1.75 / 3
    True
    """

    looks_ahead: ClassVar[bool] = True

    def __init__(self, estimator: str = "products") -> None:
        string("estimator", estimator, ("products", "exact"))
        self._is_exact = estimator == "exact"

    def __call__(self, outcome: Outcome) -> float:
        """Estimated tokens / (longest length + 1)."""
        alphas, length = outcome.alphas.tolist(), outcome.plan.length
        if outcome.num_drafted is not None and outcome.num_accepted is not None:
            tokens = tokens_by_verdict(alphas, outcome.num_drafted, outcome.num_accepted)
        elif self._is_exact:
            tokens = tokens_by_ratios(alphas, outcome.ratios.tolist(), length)
        else:
            tokens = tokens_by_products(alphas, length)
        return tokens / (outcome.max_length + 1)
