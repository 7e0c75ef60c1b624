"""How much better each plan did than the draw, in one round: what the hedging family adds up."""

from __future__ import annotations

import numpy as np

from draftwise.types import Bools, Floats


def instant_regrets(values: Floats, seen: Bools, probabilities: Floats) -> Floats:
    """[K] ``value - (mean value under the draw)`` of the seen plans, 0 of the others.

    The mean is taken over the seen plans, with the probabilities renormalised to them.

    >>> everyone = np.ones(2, dtype=bool)
    >>> instant_regrets(np.array([1.0, 0.0]), everyone, np.array([0.25, 0.75])).tolist()
    [0.75, -0.25]
    """
    if seen.all():
        return values - float(probabilities @ values)
    told = values[seen]
    weights = probabilities[seen]
    total = weights.sum()
    # Plans of probability 0 may be the only ones seen; then they count equally.
    mean = float(weights @ told) / total if total > 0.0 else told.mean()
    regrets: Floats = np.zeros(len(values))
    regrets[seen] = told - mean
    return regrets
