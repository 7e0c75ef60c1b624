"""Token trees for attention: which fed token sees which, and at what position it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.types import Bools, Draft, Ints


@dataclass(frozen=True, slots=True)
class Branches:
    """How the T tokens fed to one row stand, where they do not simply follow each other.

    A tree takes the slots from ``base`` on, in the order of feeding, in one feed or several; E is
    the end of this feed. positions: [E - base], what each slot's token has as its position: depths
    counted on from the text. seen: [T, E - base], which of these slots each fed token looks at
    (itself among them); the text below ``base`` is seen by all.
    """

    base: int
    positions: Ints
    seen: Bools | Tensor


def branches(parents: Sequence[int], base: int, num_fed: int | None = None) -> Branches:
    """A tree behind ``base`` tokens of text, of which the last ``num_fed`` (default all) are fed.

    parents: for each token, -1 = the text, or an earlier token.

    >>> branches([-1, 0, 0], base=4).positions.tolist()
    [4, 5, 5]
    >>> branches([-1, 0, 0], base=4).seen.astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    first = 0 if num_fed is None else len(parents) - num_fed
    return Branches(base, base + seen.sum(axis=1) - 1, seen[first:])


def draft_branches(draft: Draft, base: int) -> Branches | None:
    """A draft fed together with the text's last token, behind ``base`` others; None for a chain."""
    if draft.parents is None:
        return None
    parents = [-1, *(draft.parents + 1).tolist()]
    is_chain = all(parent == node - 1 for node, parent in enumerate(parents))
    return None if is_chain else branches(parents, base)


def tree_masks(
    trees: Sequence[Branches | None], slots: Ints, used: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Where trees put the fed tokens of R rows, and what these may look at.

    slots: [R, T] where each fed token is written (padding repeats a row's last). Returns the
    positions [R, T] of the queries, those of the keys [R, used], and seen [R, T, used].
    """
    queries = slots.copy()
    places = torch.arange(used, device=device)
    keys = places.repeat(len(slots), 1)
    seen = places <= torch.from_numpy(slots).to(device)[:, :, None]
    for row, tree in enumerate(trees):
        if tree is not None:
            end = tree.base + len(tree.positions)
            fed = slots[row] - end  # counted from the tree's end: negative
            queries[row] = tree.positions[fed]
            keys[row, tree.base : end] = torch.from_numpy(tree.positions).to(device)
            own = torch.as_tensor(tree.seen, device=device)
            seen[row, :, tree.base : end] = own[torch.from_numpy(fed + len(own)).to(device)]
    return torch.from_numpy(queries).to(device), keys, seen
