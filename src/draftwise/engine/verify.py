"""The reference of verification, on which losslessness rests.

``p`` is the target's distribution, ``q`` the drafter's, as in Leviathan et al. (2023). A chain is a
tree of width one, and a point mass is a distribution. ``docs/verification.md`` has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.distributions import draw, mass, residual
from draftwise.types import Dist, Draft, Verdict


def verify(draft: Draft, target_probs: Sequence[Dist] | NDArray[Any], uniforms: Any) -> Verdict:
    """Accept a path of the draft and draw a bonus token, so that the output follows ``p`` exactly.

    Source: Leviathan et al. (2023), algorithm 1; children of one node are tried in turn against the
        residual of p (recursive rejection sampling). For children drawn
        without replacement, ``draft.probs`` must be each child's own conditional q.
    draft: N nodes. target_probs: N + 1 distributions p, after the text and after each node.
    uniforms: N + 1 numbers in [0, 1): one per node for its acceptance, the last for the bonus.
        Any number type works; the exact tests use fractions.
    Cost: O(depth) and one O(V) residual. Errors: ValueError if the sizes do not fit.

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
    while True:
        p = target_probs[node + 1]
        for child in draft.children(node):
            token, q = int(draft.tokens[child]), draft.q(child)
            if uniforms[child] * mass(q, token) < mass(p, token):
                break
            p = residual(p, q)
        else:
            bonus = draw(p, uniforms[num])
            kept = [int(draft.tokens[accepted]) for accepted in path]
            return Verdict(np.array([*kept, bonus]), np.array(path, dtype=np.int64))
        path.append(child)
        node = child
