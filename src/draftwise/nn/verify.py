"""Batched verification of sampled rows on the device, equal to the reference ``engine.verify``.

There is no loop over rows and no device read. Greedy rows, whose p are tokens, use the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.nn.sampling import draw
from draftwise.types import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class DraftTreeBatch:
    """Drafts of R rows: their M nodes, concatenated, and P = M + R places, which are the rows of p:
    the end of each text, followed by its nodes.

    Of each node, [M]: tokens; owners: its row; places: its place; before: its parent's place;
    ranks: number of siblings tried before it; q: index of its distribution, -1 = a point mass.
    roots: [R] places of the texts' ends.
    """

    tokens: Ints
    owners: Ints
    places: Ints
    before: Ints
    ranks: Ints
    q: Ints
    roots: Ints

    @classmethod
    def of(
        cls, tokens: Sequence[Ints], parents: Sequence[Ints | None], q: Sequence[Ints]
    ) -> DraftTreeBatch:
        """Build a batch from tokens, parents (None = a chain) and q of each row's nodes."""
        nums = np.array([len(own) for own in tokens], dtype=np.int64)
        owners = np.repeat(np.arange(len(nums)), nums)
        places = np.arange(len(owners)) + owners + 1
        roots = np.cumsum(nums + 1) - nums - 1
        before = places - 1
        for row, own in enumerate(parents):
            if own is not None:
                before[owners == row] = roots[row] + 1 + own
        order = np.argsort(before, kind="stable")
        ranks = np.empty_like(before)
        ranks[order] = np.arange(len(order)) - np.searchsorted(before[order], before[order])
        return cls(_joined(tokens), owners, places, before, ranks, _joined(q), roots)

    @property
    def num_places(self) -> int:
        return len(self.tokens) + len(self.roots)

    @property
    def children(self) -> Ints:
        """[P, C] children of each place, in the order in which they are tried; M = none."""
        found = np.full((self.num_places, int(self.ranks.max(initial=0)) + 1), len(self.tokens))
        found[self.before, self.ranks] = np.arange(len(self.tokens))
        return found

    @property
    def rows(self) -> Ints:
        """[P] the row of each place."""
        nums = np.diff([*self.roots.tolist(), self.num_places])
        return np.repeat(np.arange(len(self.roots)), nums)

    @property
    def is_elder(self) -> Bools:
        """[M] whether a sibling is tried after the node."""
        found: Bools = self.ranks + 1 < np.bincount(self.before, minlength=1)[self.before]
        return found

    @property
    def is_again(self) -> Bools:
        """[M] whether an earlier sibling has the same token."""
        met: set[tuple[int, int]] = set()
        found = np.zeros(len(self.tokens), dtype=np.bool_)
        for node, pair in enumerate(zip(self.before.tolist(), self.tokens.tolist(), strict=True)):
            found[node] = pair in met
            met.add(pair)
        return found

    def path(self, row: int, last: int) -> Ints:
        """The nodes on the path from a row's text to a place; 0 = the row's first node."""
        path, root = [], int(self.roots[row])
        while last != root:
            path.append(last - root - 1)
            last = int(self.before[last - row - 1])
        return np.array(path[::-1], dtype=np.int64)


def rejection_sample(
    forest: DraftTreeBatch, p: Tensor, q: Tensor, uniforms: Floats, bonus_uniforms: Floats
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept a path of every draft and draw the bonus tokens, as ``engine.verify`` for one draft.

    p: [P, V] after each place. q: [m, V]. uniforms: [M]. bonus_uniforms: [R]. Returns [R] places of
    the last accepted tokens; [R] bonus tokens, -1 where p is not finite; [P] the token after each
    place, either an accepted node's or the row's bonus token.

    Source: as ``engine.verify``. Whether a node is accepted *if it is tried* depends only on its
    earlier siblings, so it is decided for all nodes at once; pointer doubling then finds the last
    accepted one. Difference: residuals of point masses are summed in float64; the reference rounds
    to float32 after each sibling. Cost: about 30 small kernels, and residuals [R, V].
    """
    columns = np.stack((forest.tokens, forest.before, forest.places, forest.q))
    index = torch.from_numpy(columns).to(p.device)
    tokens, before, places, rows = index
    u = torch.from_numpy(np.concatenate((uniforms, bonus_uniforms))).to(p.device)
    children = torch.from_numpy(forest.children).to(p.device)
    roots = torch.from_numpy(forest.roots).to(p.device)
    num, end = len(forest.tokens), forest.num_places
    if not num:
        bonus = draw(p[roots], u)
        return roots, bonus, bonus
    of_p = p[before, tokens].double()
    if forest.ranks.any():
        of_p = _when_tried(forest, p, q, of_p, children, index)
    is_kept = u[:num] * masses(q, rows, tokens, tokens) < of_p
    first = torch.full((end,), end, device=p.device)
    first = first.scatter_reduce(0, before, places.where(is_kept, end), "amin")
    after = torch.where(first < end, first, torch.arange(end, device=p.device))
    for _ in range(int(np.bincount(forest.owners).max(initial=0)).bit_length()):
        after = after[after]
    last = after[roots]
    bonus = draw(_left(p[last], children[last], index, q), u[num:])
    owners = torch.from_numpy(forest.rows).to(p.device)
    token_at = torch.zeros_like(first).index_copy(0, places, tokens)
    return last, bonus, torch.where(first < end, token_at[first.clamp(max=end - 1)], bonus[owners])


def masses(q: Tensor, rows: Tensor, proposed: Tensor, tokens: Tensor) -> Tensor:
    """[K] probabilities of tokens. rows: [K] of q [m, V], or -1 = a point mass at ``proposed``."""
    of_point = (proposed == tokens).double()
    if not len(q):
        return of_point
    return torch.where(rows < 0, of_point, q[rows.clamp(min=0), tokens.clamp(min=0)].double())


def overlaps(p: Tensor, places: Ints, q: Tensor, rows: Ints, proposed: Ints) -> Tensor:
    """[K] acceptance probabilities ``sum_v min(p, q)``; rows, proposed: as in ``masses``."""
    of_p, tokens = torch.from_numpy(np.stack((places, proposed.clip(0)))).to(p.device)
    found = p[of_p, tokens].double()
    drawn = np.flatnonzero(rows >= 0)
    if not len(drawn):
        return found
    pairs = np.stack((drawn, places[drawn], rows[drawn]))
    at, ours, theirs = torch.from_numpy(pairs).to(p.device)
    return found.index_copy(0, at, torch.minimum(p[ours], q[theirs]).sum(-1).double())


def ratios(
    p: Tensor, places: Ints, q: Tensor, rows: Ints, proposed: Ints, following: Tensor
) -> Tensor:
    """[K] ``min(1, q/p)`` of the tokens that follow these places, as ``Scores.ratios``."""
    where = torch.from_numpy(np.stack((places, rows, proposed))).to(p.device)
    tokens = following[where[0]].clamp(min=0)
    of_p, of_q = p[where[0], tokens].double(), masses(q, where[1], where[2], tokens)
    return torch.where(of_p > 0, (of_q / of_p).clamp(max=1), 0.0)


def _when_tried(
    forest: DraftTreeBatch, p: Tensor, q: Tensor, of_p: Tensor, children: Tensor, index: Tensor
) -> Tensor:
    """[M] p of each node's token after its earlier siblings were rejected; of_p: [M] before.

    After point masses p is renormalised by a division; after a draw it is a residual of V numbers.
    """
    order = np.argsort(forest.before, kind="stable")  # siblings in their order
    firsts = np.arange(len(order)) - forest.ranks[order]
    crowded = np.unique(forest.before[forest.ranks > 0])
    tried, firsts_, later, fresh = torch.from_numpy(
        np.stack((order, firsts, forest.ranks > 0, ~forest.is_again))
    ).to(p.device)
    own = of_p * fresh
    before = own[tried].cumsum(0) - own[tried]
    gone = torch.zeros_like(own).index_copy(0, tried, before - before[firsts_])
    at = torch.from_numpy(crowded).to(p.device)
    whole = own.new_zeros(forest.num_places).index_copy(0, at, p[at].sum(-1, dtype=torch.float64))
    left = whole[index[1]] - gone
    tried = torch.where((later > 0) & (left > 0), own / left, of_p)
    drawn = np.unique(forest.before[(forest.q >= 0) & forest.is_elder])
    if not len(drawn):
        return tried
    at = torch.from_numpy(drawn).to(p.device)
    rest, tried = p[at], torch.cat((tried, tried.new_zeros(1)))
    for kids in children[at].T:
        tokens = index[0][kids.clamp(max=len(order) - 1)]
        tried = tried.scatter(0, kids, rest.gather(1, tokens[:, None])[:, 0].double())
        rest = _left(rest, kids[:, None], index, q)
    return tried[:-1]


def _left(rest: Tensor, children: Tensor, index: Tensor, q: Tensor) -> Tensor:
    """[R, V] residual of p after the children [R, C] (M = none) were rejected in turn."""
    tokens, rows = index[0], index[3]
    for kids in children.T[:, :, None] if len(q) else children[None]:
        is_there = kids < len(tokens)
        kids = kids.clamp(max=len(tokens) - 1)
        less, stays = rest, ~is_there
        if len(q):
            is_drawn = is_there & (rows[kids] >= 0)
            less = (rest - q[rows[kids[:, 0]].clamp(min=0)]).clamp(min=0).where(is_drawn, rest)
            stays |= is_drawn
        less = less.scatter_reduce(1, tokens[kids], stays.to(rest.dtype), "prod")
        total = less.sum(-1, keepdim=True)
        # no mass left: a rejection had probability 0, and p itself is the limit
        rest = torch.where(total > 0, less / total, rest)
    return rest


def _joined(parts: Sequence[Ints]) -> Ints:
    found: Ints = np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)
    return found
