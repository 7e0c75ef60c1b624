"""What an outcome is worth, in [0, 1]: the only room that knows units.

A reward is any callable from ``Outcome`` to a float. ``nan`` means that the outcome does not tell
(too few alphas, no clock, a plan that did not play), and a feedback then counts the plan as not
seen. The attribute ``looks_ahead`` says whether a reward needs the alphas of as many positions as
the plan is long (so that it has to wait for text to come), or only those of the round itself.
"""

from __future__ import annotations

import math
from typing import ClassVar

from draftwise.types import Outcome

NAN = float("nan")


def expected_tokens(alphas: list[float], length: int) -> float:
    """Expected emitted tokens of a draft of ``length``, from the alphas along the verified text.

    Source: HedgeSpec, Theorem 3: sum_{k=1}^{K+1} k (1 - a_k) prod_{j<k} a_j with a_{K+1} = 0,
        which telescopes to 1 + sum_{k=1}^{K} prod_{j<=k} a_j.
    ``nan`` when fewer than ``length`` alphas are given and none of them ends the draft for sure.

    >>> expected_tokens([0.5, 0.5, 0.9], length=2)
    1.75
    >>> expected_tokens([0.5, 0.0], length=8), expected_tokens([0.5], length=2)
    (1.5, nan)
    """
    tokens, survival = 1.0, 1.0
    for alpha in alphas[:length]:
        survival *= alpha
        tokens += survival
    return tokens if len(alphas) >= length or survival == 0.0 else NAN


def expected_tokens_played(alphas: list[float], num_drafted: int, num_accepted: int) -> float:
    """Expected emitted tokens of a draft that was played, from what its own verification shows.

    The probability that token j is accepted, given the accepted ones before it, is alpha_j; so
    1 + sum of alpha_j over the positions through the first rejection has the same mean as the
    count and less noise. (Theorem 3 would be wrong here: how far the alphas are known depends on
    the draws.) Where nobody computed the alphas it is the count itself.

    >>> expected_tokens_played([0.75, 0.5], num_drafted=4, num_accepted=1)
    2.25
    >>> expected_tokens_played([], num_drafted=4, num_accepted=1)
    2.0
    """
    reached = min(num_accepted + 1, num_drafted)
    if len(alphas) < reached:
        return 1.0 + num_accepted
    return 1.0 + math.fsum(alphas[:reached])


class Length:
    """Accepted tokens over the longest length.

    Source: MetaSD's block efficiency BE = N_acc / N_max (section 2.3); one minus it is the loss
        (L + 1 - Y) / L of BanditSpec eq. (6), whose Y counts the bonus token.
    Differs: a plan that did not play is given its expectation (HedgeSpec, Theorem 3).
    State: none. Cost: O(length). Errors: none; ``nan`` if the alphas do not reach.

    >>> from draftwise.types import PLAIN
    >>> import numpy as np
    >>> Length()(Outcome(PLAIN, 4, np.zeros(0), np.zeros(0), np.zeros(0), 0, 0))
    0.0
    """

    looks_ahead: ClassVar[bool] = True

    def __call__(self, outcome: Outcome) -> float:
        """Accepted / longest length."""
        if outcome.num_accepted is not None:
            return outcome.num_accepted / max(outcome.max_length, 1)
        tokens = expected_tokens(outcome.alphas.tolist(), outcome.plan.length)
        return (tokens - 1.0) / max(outcome.max_length, 1)


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


class ExpectedLength:
    """Expected emitted tokens over the most that a round can emit.

    Source: HedgeSpec, Theorem 3 and the loss f_t = 1 - estimate / (K + 1) of section 3.3; this is
        1 - f_t.
    Differs: (1) K + 1 is that of the longest plan, so plans of different lengths are on one scale;
        (2) a plan that played and of which only its own verification is known is valued by
        ``expected_tokens_played``; (3) the theorem's products of alphas are not exactly unbiased
        for token-by-token verification: docs/expected-length.md.
    State: none. Cost: O(length). Errors: none; ``nan`` if the alphas do not reach.

    >>> from draftwise.types import Plan
    >>> import numpy as np
    >>> alphas = np.array([0.5, 0.5])
    >>> ExpectedLength()(Outcome(Plan("a", 2), 2, alphas, alphas, alphas)) == 1.75 / 3
    True
    """

    looks_ahead: ClassVar[bool] = True

    def __call__(self, outcome: Outcome) -> float:
        """Estimated tokens / (longest length + 1)."""
        alphas = outcome.alphas.tolist()
        if outcome.num_drafted is None or outcome.num_accepted is None:
            tokens = expected_tokens(alphas, outcome.plan.length)
        else:
            tokens = expected_tokens_played(alphas, outcome.num_drafted, outcome.num_accepted)
        return tokens / (outcome.max_length + 1)


class Acceptance:
    """Mean acceptance probability over the round's positions.

    Source: HedgeSpec, section 3.3: 1 - f_t with f_t = 1 - alpha_t; over a chunk its mean
        (appendix B.3).
    Differs: none; plans of one drafter differ only by how many positions they would draft.
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
