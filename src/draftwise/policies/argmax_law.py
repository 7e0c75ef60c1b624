"""Which of several independent random numbers is the largest: the law that Thompson draws from."""

from __future__ import annotations

import math

import numpy as np

from draftwise.types import Floats

_LEAST = 1e-300


def argmax_law(masses: Floats, middles: Floats) -> Floats:
    """[K] probability that each number is the largest, from cells that all numbers share.

    masses: [K, G] probability of each number in each cell, in rising order. middles: [K, G] its
    distribution function in the middle of the cell. P_i = sum_g mass_i(g) prod_{j != i} F_j(g).

    >>> masses, middles = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.5, 1.0], [0.0, 0.5]])
    >>> argmax_law(masses, middles).round(9).tolist()
    [0.0, 1.0]
    """
    logs = np.log(np.maximum(middles, _LEAST))
    return argmax_law_of_logs(masses, logs)


def argmax_law_of_logs(masses: Floats, logs: Floats) -> Floats:
    """As ``argmax_law``, with the logarithms of ``middles``."""
    weights = (masses * np.exp(logs.sum(axis=0) - logs)).sum(axis=1)
    normalised: Floats = weights / weights.sum()
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
    """The standard normal distribution function, from a table, to 4e-4.

    >>> normal_cdf(np.array([-40.0, 0.0, 40.0])).round(9).tolist()
    [0.0, 0.5, 1.0]
    """
    places = np.minimum(np.maximum(x, -_REACH), _REACH)
    places += _REACH
    places *= _PER_UNIT
    places += 0.5
    cdf: Floats = _PHI[places.astype(np.int64)]
    return cdf
