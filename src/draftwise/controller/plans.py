"""Expected tokens and seconds of whole drafts: chains, trees and copied text."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from draftwise.controller.rates import Bins, depth_of
from draftwise.types import NONE, Costs, Floats, Ints, Plan

_NO_BINS = Bins()


class PlanCosts:
    """Seconds per round of each plan, ``T(n + 1) + k c``, from the latest costs.

    A tree's draft step processes as many tokens as the tree is wide. A forward longer than any
    measured one costs as much as the longest: an overestimate would end drafting, and so all
    learning. Before any measurement a target forward takes 1 s and a draft step 0.05 s. Unless
    catching up was measured, a drafter's forward is assumed to scale with its tokens as the
    target's does. target_s: by tokens. draft_s, read_s: [D] seconds of a draft step, and of
    catching up by one token. seconds: [K]. names: [D]. places: the plans of each drafter. drafters,
    lengths, sizes, depths: [K] each plan's index in names, its length k, its verified tokens n, and
    the maximum number of accepted ones. trees: index, drafter and shape of trees.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.names = sorted({plan.drafter for plan in plans})
        self.drafters: Ints = np.array([self.names.index(plan.drafter) for plan in plans])
        self.lengths: Ints = np.array([plan.length for plan in plans])
        self.sizes: Ints = np.array([plan.num_tokens for plan in plans])
        self.trees = [(k, plan.drafter, plan.tree) for k, plan in enumerate(plans) if plan.tree]
        self.depths: Ints = self.lengths.copy()
        self._wider: Ints = np.zeros(len(plans), np.int64)  # additional tokens per draft step
        for k, _, shape in self.trees:
            self.depths[k] = depth_of(shape, plans[k].length)
            self._wider[k] = shape.top_k - 1
        self.longest = max(int(self.lengths.max()), 1)
        self.places = [np.flatnonzero(self.drafters == row) for row in range(len(self.names))]
        self._own_lengths = [self.lengths[own] for own in self.places]
        self._taken: Costs | None = None
        self.target_s: list[float] = [1.0]
        self.take(Costs(np.zeros(0), {}))

    def take(self, costs: Costs) -> None:
        """Replace the costs; those of target forwards stay if the new costs have none."""
        if self._taken is not None and _are_equal(self._taken, costs):
            return
        self._taken = costs
        if len(costs.target_s):
            self.target_s = np.maximum(costs.target_s, 1e-12).tolist()  # of a coarse clock
        first, last = self.target_s[0], self.target_s[-1]
        growth = (last / first - 1.0) / max(len(self.target_s) - 1, 1)
        draft_s = [
            0.0 if name == NONE else costs.draft_s.get(name, 0.05 * first) for name in self.names
        ]
        steps = zip(self.names, draft_s, strict=True)
        read_s = [costs.read_s.get(name, growth * step_s) for name, step_s in steps]
        self.draft_s, self.read_s = np.array(draft_s), np.array(read_s)
        forward_s = np.array(self.target_s)[np.minimum(self.sizes, len(self.target_s) - 1)]
        step_s = self.draft_s[self.drafters] + self._wider * self.read_s[self.drafters]
        self.seconds: Floats = forward_s + self.lengths * step_s

    def expected_tokens(self, rates: Floats, bins: Mapping[str, Bins]) -> Floats:
        """[K] ``expected_tokens`` from acceptance [D]; in trees, ``bins`` add that of siblings."""
        own = rates.take(self.drafters)
        for k, name, shape in self.trees:
            own[k] = bins.get(name, _NO_BINS).of_tree(shape, int(self.lengths[k]), float(own[k]))
        return expected_tokens(own, self.depths)

    def retrieved(
        self, tokens: Floats, row: int, ladder: Sequence[float], match: int,
        bins: Mapping[str, Bins],
    ) -> None:  # fmt: skip
        """Write ``retrieved_tokens`` of one drafter's plans into tokens [K]."""
        found = np.array(retrieved_tokens(ladder, match, self.longest))
        tokens[self.places[row]] = found[self._own_lengths[row]]
        for k, name, shape in self.trees:
            if name == self.names[row]:
                own, length = bins.get(name, _NO_BINS), int(self.lengths[k])
                rungs = [own.of_tree(shape, length, alpha) for alpha in ladder]
                tokens[k] = retrieved_tokens(rungs, match, self.longest)[self.depths[k]]


def _are_equal(costs: Costs, others: Costs) -> bool:
    return costs is others or (
        costs.draft_s == others.draft_s
        and costs.read_s == others.read_s
        and len(costs.target_s) == len(others.target_s)
        and bool((costs.target_s == others.target_s).all())
    )


def expected_tokens(rates: Floats, lengths: Ints) -> Floats:
    """Expected tokens of a round, ``1 + a + .. + a^k = (1 - a^(k + 1)) / (1 - a)``.

    Source: Leviathan et al. 2023, equation 1. rates, lengths: broadcastable shapes.

    >>> expected_tokens(np.array([0.5, 0.5]), np.array([1, 2])).tolist()
    [1.5, 1.75]
    """
    alphas: Floats = np.minimum(rates, 1.0 - 1e-9)  # where the sum is k + 1 to seven digits
    return (1.0 - alphas ** (lengths + 1)) / (1.0 - alphas)


def retrieved_tokens(ladder: Sequence[float], match: int, longest: int) -> list[float]:
    """[longest + 1] expected tokens of a retrieval round, by draft length; 0 without a match.

    ladder: acceptance after a match of 1, 2, .. tokens; each accepted token extends the match.

    >>> retrieved_tokens([0.5, 0.5, 0.5], 1, 2)
    [1.0, 1.5, 1.75]
    """
    if match <= 0:
        return [0.0] * (longest + 1)
    first = min(match - 1, len(ladder) - longest)
    reached = accumulate(ladder[first : first + longest], operator.mul)
    return list(accumulate(reached, initial=1.0))
