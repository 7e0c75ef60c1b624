"""Rewards of accepted tokens: the normalised count, and its blend with the acceptance rate."""

from __future__ import annotations

from typing import ClassVar

from draftwise.checks import probability
from draftwise.rewards import NAN
from draftwise.rewards.estimators import tokens_by_products
from draftwise.types import Outcome


class Length:
    """Accepted tokens over the longest length.

    Source: MetaSD's block efficiency BE = N_acc / N_max (section 2.3); one minus it is the loss
        (L + 1 - Y) / L of BanditSpec eq. (6), whose Y counts the bonus token; TapOut's r_simple
        = |Y| / gamma (section 3.2), which is why it has that name in the table as well.
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
        return _accepted(outcome) / max(outcome.max_length, 1)


class Blend:
    """The normalised count blended with the acceptance rate, which rejected tokens lower.

    Source: TapOut, section 3.2: alpha |Y| / gamma + (1 - alpha) |Y| / |X|, alpha 0.5; X is what
        was drafted, Y what was accepted of it, gamma the longest length.
    Differs: (1) nothing drafted counts as rate 0; (2) a plan with a fixed length that did not play
        is given its expectation (HedgeSpec, Theorem 3); any other that did not is ``nan``.
    State: none. Cost: O(length). Errors: ValueError if alpha is not in [0, 1].

    >>> from draftwise.types import Plan
    >>> import numpy as np
    >>> Blend(0.5)(Outcome(Plan("a", 4), 8, np.zeros(0), np.zeros(0), np.zeros(0), 4, 2))
    0.375
    """

    looks_ahead: ClassVar[bool] = True

    def __init__(self, alpha: float = 0.5) -> None:
        self._alpha = probability("alpha", alpha)

    def __call__(self, outcome: Outcome) -> float:
        """The blend; ``nan`` where the number of drafted tokens is not known."""
        num_drafted: float
        if outcome.num_drafted is not None:
            num_drafted = outcome.num_drafted
        else:
            num_drafted = outcome.plan.length if outcome.plan.rule == "fixed" else NAN
        accepted = _accepted(outcome)
        rate = accepted / num_drafted if num_drafted != 0 else 0.0
        return self._alpha * accepted / max(outcome.max_length, 1) + (1.0 - self._alpha) * rate


def _accepted(outcome: Outcome) -> float:
    """Accepted tokens, or what is expected of a plan that did not play."""
    if outcome.num_accepted is not None:
        return outcome.num_accepted
    return tokens_by_products(outcome.alphas.tolist(), outcome.plan.length) - 1.0
