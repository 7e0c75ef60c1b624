"""One draft by several drafters: the writer of each token, and where it ends, by price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from draftwise.policies.goodput.confidences import Bins, bin_of
from draftwise.types import DraftStep

RATE_SHARE = 0.9
"""The share of the best plan's rate at which seconds are priced: too dear would end drafting."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a draft costs now.

    rate: tokens a second that its seconds could bring otherwise. target_s: seconds of a forward
    over 1, 2, .. tokens. draft_s: of a step, by drafter.
    """

    rate: float
    target_s: Sequence[float]
    draft_s: Mapping[str, float]

    def gain(
        self, width: int, reached: float, alphas: Iterable[float], drafter: str, wide: float = 0.0
    ) -> float:
        """The most tokens above their price that going on with these acceptances may bring.

        width: tokens of the draft so far. reached: the probability that its chain is accepted.
        wide: what siblings of each further token are worth, where it is reached. How far to go on
        is free: a step of the costs is jumped over where what lies after it pays.

        >>> flat = Prices(rate=1.0, target_s=[1.0], draft_s={"small": 0.2})
        >>> round(flat.gain(0, 1.0, [0.5, 0.5, 0.5], "small"), 3)
        0.35
        """
        target_s, last = self.target_s, len(self.target_s) - 1
        rate, step_s = self.rate, self.draft_s.get(drafter, 0.0)
        seconds = -target_s[min(width, last)]
        tokens, best = 0.0, -math.inf
        for alpha in alphas:  # some hundred a round: no calls in here
            tokens += reached * wide
            reached *= alpha
            tokens += reached
            seconds += step_s
            width += 1
            value = tokens - rate * (seconds + target_s[width if width < last else last])
            if value > best:
                best = value
        return best

    def best_siblings(
        self, width: int, reached: float, shares: Sequence[float]
    ) -> tuple[int, float]:
        """How many siblings are worth the most, and their worth above their price.

        reached: the probability that what comes before them is accepted. shares: of the first,
        second, .. sibling, the probability that it is the one kept then.

        >>> Prices(1.0, [1.0, 1.1, 1.1, 1.1, 1.5], {}).best_siblings(1, 1.0, [0.2, 0.1, 0.05])
        (2, 0.30000000000000004)
        """
        target_s, last = self.target_s, len(self.target_s) - 1
        start, tokens, best, most = target_s[min(width, last)], 0.0, 0.0, 0
        for num, share in enumerate(shares, 1):
            tokens += reached * share
            value = tokens - self.rate * (target_s[min(width + num, last)] - start)
            if value > best:
                best, most = value, num
        return most, best


class GoodputMixer:
    """Before each token of one draft: its writer, ``drafter`` or a match, or that it ends.

    Source: this project's own (DESIGN section 7). The writer's continuation promises the
        most tokens above their price; none, if none promises any.
    Update: after a drafter's token the probability of getting here is multiplied by the acceptance
        of its confidence's bin, and its next token is believed to be accepted as often as others
        that followed that bin; after a copied one it is multiplied by that of the match. Everything
        it looks at was known before the token is drawn, and what was drawn stays: lossless
        (``docs/verification.md``).
    ladders: by retrieval drafter, the acceptance of a token after a match of 1, 2, .. tokens.
    State: that probability, and the acceptance of the drafter's next token.
    Cost: O(length) a token and offer, some microseconds.
    """

    def __init__(
        self,
        drafter: str,
        length: int,
        alpha: float,
        bins: Bins,
        prices: Prices,
        ladders: Mapping[str, Sequence[float]],
    ) -> None:
        self.drafter, self.length = drafter, length
        self._alpha, self._bins, self._prices, self._ladders = alpha, bins, prices, ladders
        self._reached, self._next, self._copied = 1.0, alpha, 0.0
        self._num_siblings = 0

    def pick(
        self, step: DraftStep, matches: Mapping[str, int], may_draft: bool = True
    ) -> str | None:
        """The writer of the next token; None = the draft ends here.

        matches: tokens of each retrieval drafter's match at the end of text and draft. may_draft:
        whether ``drafter`` can go on here.
        """
        self._see(step)
        left = self.length - step.depth
        offers: dict[str, Sequence[float]] = {}
        if may_draft:
            offers[self.drafter] = [self._next, *[self._alpha] * (left - 1)]
        for name, match in matches.items():
            if match and name in self._ladders:
                ladder = self._ladders[name]
                first = min(match, len(ladder) - left) - 1
                offers[name] = ladder[first : first + left]
        width, wide = step.depth + self._num_siblings, self._bins.wide
        gains = {
            name: self._prices.gain(
                width, self._reached, alphas, name, wide if name == self.drafter else 0.0
            )
            for name, alphas in offers.items()
        }
        best = max(gains, key=gains.__getitem__, default=None)
        if best is None or gains[best] < 0:
            return None
        self._copied = 0.0 if best == self.drafter else offers[best][0]
        return best

    def num_siblings(self, step: DraftStep, room: int) -> int:
        """Alternatives of the token that ``drafter`` wrote last, by its confidence and their price.

        room: tokens that the draft may still have; of those the chain's last one is worth more
        than an alternative that is kept less often.
        """
        index = bin_of(step.max_prob)
        shares, accepted = self._bins.siblings(index), self._bins.accepted(index)
        width = step.depth + self._num_siblings
        num, worth = self._prices.best_siblings(width, self._reached, shares)
        while num and shares[num - 1] < accepted * self._alpha ** (room - num):
            num -= 1
        self._num_siblings += num
        self._bins.saw_worth(worth / max(self._reached, 1e-3))
        return num

    def _see(self, step: DraftStep) -> None:
        """How far the draft is believed in after the token that was kept last."""
        if step.depth == 0:
            return
        if self._copied:
            self._reached, self._next = self._reached * self._copied, self._alpha
        else:
            index = bin_of(step.max_prob)
            self._reached *= self._bins.accepted(index)
            self._next = self._bins.accepted_next(index)
