"""The reference implementation of verification, which defines losslessness.

``p`` is the target's distribution, ``q`` the drafter's, as in Leviathan et al. (2023). A chain is a
tree of width one; a point mass is represented by its token. Pure numpy on any number type: the
exact tests use fractions. ``docs/verification.md`` has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.types import Dist, Draft, Verdict

Point = (int, np.integer)


def verify(draft: Draft, target_probs: Sequence[Dist] | NDArray[Any], uniforms: Any) -> Verdict:
    """Accept a path of the draft and draw a bonus token, so that the output follows ``p`` exactly.

    Source: Leviathan et al. (2023), algorithm 1; children of one node are tried in turn against the
        residual of p (recursive rejection sampling). For children drawn without replacement,
        ``draft.probs`` must be each child's own conditional q.
    draft: N nodes. target_probs: N + 1 distributions p, after the text and after each node.
    uniforms: N + 1 numbers in [0, 1): one per node for its acceptance, the last for the bonus.
    Cost: O(depth) and an O(V) residual per rejection. Errors: ValueError if the sizes do not match.

    >>> draft = Draft.chain([2, 0], None, "lookup")
    >>> verify(draft, [2, 1, 1], [0.0, 0.0, 0.0]).tokens.tolist()  # greedy: p are point masses
    [2, 1]
    """
    num = len(draft)
    if len(target_probs) != num + 1 or len(uniforms) != num + 1:
        raise ValueError(
            f"a draft of {num} nodes needs {num + 1} target distributions and {num + 1} uniforms; "
            f"got {len(target_probs)} and {len(uniforms)}"
        )
    node = -1
    path: list[int] = []
    tokens: list[int] = draft.tokens.tolist()
    while True:
        p = target_probs[node + 1]
        for child in draft.children(node):
            token, q = tokens[child], draft.q(child)
            if uniforms[child] * mass(q, token) < mass(p, token):
                break
            p = residual(p, q)
        else:
            bonus = draw(p, uniforms[num])
            kept = [tokens[accepted] for accepted in path]
            return Verdict(np.array([*kept, bonus]), np.array(path, dtype=np.int64))
        path.append(child)
        node = child


def mass(dist: Dist, token: int) -> Any:
    """The probability of ``token``."""
    if isinstance(dist, Point):
        return 1 if dist == token else 0
    return dist[token]


def residual(p: Dist, q: Dist) -> Dist:
    """The residual of p after a draw from q was rejected: max(p - q, 0), renormalised."""
    if isinstance(p, Point):
        return p
    if isinstance(q, Point):
        rest = p.copy()
        rest[q] = rest[q] - rest[q]  # a zero of the array's number type
    else:
        rest = np.maximum(p - q, p - p)
    total = rest.sum()
    # p equals q up to rounding: a rejection has probability 0, and p itself is the limit
    return rest / total if total > 0 else p


def draw(dist: Dist, uniform: Any) -> int:
    """Inverse-CDF draw at ``uniform`` in [0, 1); never a token of probability 0."""
    if isinstance(dist, Point):
        return int(dist)
    cumulative = np.cumsum(dist if dist.dtype == object else dist.astype(np.float64))
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return token if token < len(dist) else int(np.flatnonzero(dist > 0)[-1])


def overlap(p: Dist, q: Dist) -> float:
    """The acceptance probability of a draw from q: ``sum_v min(p, q)`` = 1 - total variation."""
    if isinstance(q, Point):
        return float(mass(p, int(q))) if q >= 0 else 0.0  # -1: no proposal
    if isinstance(p, Point):
        return float(q[int(p)]) if p >= 0 else 0.0  # -1: non-finite logits
    return float(np.minimum(p, q).sum())


def ratio(p: Dist, q: Dist, token: int) -> float:
    """``min(1, q/p)`` of the token that follows in the text; 0 where p is 0."""
    of_p = float(mass(p, token))
    return min(1.0, float(mass(q, token)) / of_p) if of_p > 0 else 0.0


def is_broken(dist: Dist) -> bool:
    """Whether this is the token -1, which marks non-finite logits."""
    return isinstance(dist, int) and dist < 0
