"""Which of several independent random numbers is the largest: the law that Thompson draws from."""

from __future__ import annotations

import math

import numpy as np

from draftwise.types import Floats


def argmax_law(masses: Floats, middles: Floats) -> Floats:
    """[K] probability that each number is the largest, from cells that all numbers share.

    masses: [K, G] probability of each number in each cell, in rising order. middles: [K, G] its
    distribution function in the middle of the cell, above 0. P_i = sum_g mass_i(g) prod_{j != i}
    F_j(g); a product that underflows counts as 0.

    >>> masses, middles = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.5, 1.0], [1e-9, 0.5]])
    >>> argmax_law(masses, middles).round(6).tolist()
    [0.0, 1.0]
    """
    weights = middles.prod(axis=0) / middles
    weights *= masses
    totals = weights.sum(axis=1)
    normalised: Floats = totals / totals.sum()
    return normalised


_PER_UNIT = 512
_REACH = 8
_PHI = np.array(
    [
        0.5 * math.erfc(-place / _PER_UNIT / math.sqrt(2.0))
        for place in range(-_REACH * _PER_UNIT, _REACH * _PER_UNIT + 1)
    ]
)


def normal_cdf(x: Floats) -> Floats:
    """The standard normal distribution function, from a table, to 4e-4; 6e-16 at least.

    >>> normal_cdf(np.array([-40.0, 0.0, 40.0])).round(9).tolist()
    [0.0, 0.5, 1.0]
    """
    places = np.minimum(np.maximum(x, -_REACH), _REACH)
    places += _REACH
    places *= _PER_UNIT
    places += 0.5
    cdf: Floats = _PHI[places.astype(np.int64)]
    return cdf
