"""What plans are expected to cost and to bring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwise.types import Floats, Ints


def seconds_per_plan(
    target_s: Sequence[float], draft_s: Floats, drafters: Ints, lengths: Ints, sizes: Ints
) -> Floats:
    """[K] seconds of a round, ``T(n + 1) + k c``.

    target_s: seconds of a target forward over 1, 2, .. tokens; a longer one costs what the last
        does (an overestimate would end drafting, and with it all learning). draft_s: [D] seconds
        of a draft step. drafters, lengths, sizes: [K], each plan's row of draft_s, its length k and
        the tokens n that the target verifies (k for a chain, all nodes of a tree).

    >>> one, two = np.array([0]), np.array([2])
    >>> seconds_per_plan([1.0, 1.5], np.array([0.25]), one, two, two).tolist()
    [2.0]
    """
    forward_s = np.array(target_s)[np.minimum(sizes, len(target_s) - 1)]
    seconds: Floats = forward_s + lengths * draft_s[drafters]
    return seconds


def tokens_per_plan(alphas: Floats, drafters: Ints, lengths: Ints) -> Floats:
    """[K] expected emitted tokens of a round, ``1 + sum_{j<=k} S(j)``.

    alphas: [D, L] acceptance probability of each drafter's j-th token if those before it were
        accepted; S is its running product.

    >>> tokens_per_plan(np.array([[0.5, 0.5]]), np.array([0, 0, 0]), np.array([0, 1, 2])).tolist()
    [1.0, 1.5, 1.75]
    """
    tokens = np.ones((alphas.shape[0], alphas.shape[1] + 1))
    tokens[:, 1:] += alphas.cumprod(axis=1).cumsum(axis=1)
    expected: Floats = tokens[drafters, lengths]
    return expected
