"""Which of several independent random numbers is the largest: the law that Thompson draws from."""

from __future__ import annotations

import math

import numpy as np

from draftwise.types import Floats, Ints

_REACH = 6.0
"""Standard deviations around a mean in which a number is looked for."""

_FINEST = 0.25
"""The finest cell begins at the scale of the smallest standard deviation over this many cells."""

_TINY = 1e-30  # a distribution function of 0 would divide 0 by 0


def shared_cells(
    means: Floats, sds: Floats, num: int, least: float = -math.inf, most: float = math.inf
) -> tuple[Ints, Floats, Floats]:
    """Which numbers may be the largest, and [num] middles and widths of cells for all of them.

    The largest number is hardly ever below ``low``, the highest of the lower ends ``mean - 6 sd``.
    Whatever reaches beyond it with a standard deviation s lies within 12 s of it; so cells that
    grow with their distance from ``low`` are as fine as each number needs, wherever it is. least,
    most: the numbers' range.

    >>> alive, middles, widths = shared_cells(np.array([0.5, 0.9]), np.array([0.01, 0.01]), 64)
    >>> alive.tolist(), bool(widths[0] < 0.01 < middles[0] - 0.8), round(float(widths.sum()), 9)
    ([1], True, 0.12)
    """
    highs = means + _REACH * sds
    low = max(float((means - _REACH * sds).max()), least)
    high = min(float(highs.max()), most)
    alive = np.flatnonzero(highs > low)
    stretch = math.log1p(_FINEST * (high - low) / float(sds[alive].min()))
    edges = np.expm1(np.linspace(0.0, stretch, num + 1))
    edges = low + (high - low) / edges[-1] * edges
    return alive, 0.5 * (edges[1:] + edges[:-1]), edges[1:] - edges[:-1]


def argmax_law(log_densities: Floats, widths: Floats) -> Floats:
    """[K] probability that each number is the largest, from cells that all numbers share.

    log_densities: [K, G] in the middles of the cells, which reach to the top of every number;
    widths: [G]. With masses m and distribution functions F in the middles, P_i = sum_g m_i(g)
    prod_{j != i} F_j(g); what lies below the first cell is what the masses leave of 1.
    ``log_densities`` is overwritten.

    >>> argmax_law(np.zeros((2, 64)), np.full(64, 1 / 64)).round(6).tolist()
    [0.5, 0.5]
    """
    masses = np.exp(log_densities, out=log_densities)
    masses *= widths
    cdf = masses.cumsum(axis=1)
    below = 1.0 - cdf[:, -1:]
    cdf -= 0.5 * masses
    cdf += below
    np.maximum(cdf, _TINY, out=cdf)
    weights = cdf.prod(axis=0) / cdf
    weights *= masses
    totals = weights.sum(axis=1)
    normalised: Floats = totals / totals.sum()
    return normalised
