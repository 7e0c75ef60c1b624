"""Mixed drafts: chooses each token's drafter and the end of the draft by expected gain."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from draftwise.controller.rates import Bins, bin_of, bucket_of
from draftwise.types import DraftStep


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a draft. rate: tokens per second that plain decoding or another draft would emit.

    target_s: seconds of a target forward over 1, 2, .. tokens. draft_s: of a step, by drafter.
    """

    rate: float
    target_s: Sequence[float]
    draft_s: Mapping[str, float]

    def gain(self, width: int, reached: float, alphas: Iterable[float], drafter: str) -> float:
        """The largest gain of continuing with one drafter: expected tokens minus their price.

        width: tokens of the draft so far. reached: probability that its chain is accepted. alphas:
        acceptance of each further token. The maximum is over all lengths, so the draft crosses a
        step in the target's cost where that pays.

        >>> flat = Prices(rate=1.0, target_s=[1.0], draft_s={"small": 0.2})
        >>> round(flat.gain(0, 1.0, [0.5, 0.5, 0.5], "small"), 3)
        0.35
        """
        target_s, last = self.target_s, len(self.target_s) - 1
        rate, step_s = self.rate, self.draft_s.get(drafter, 0.0)
        seconds = -target_s[min(width, last)]
        tokens, best = 0.0, -math.inf
        for alpha in alphas:  # hundreds of iterations a round: avoid calls
            reached *= alpha
            tokens += reached
            seconds += step_s
            width += 1
            value = tokens - rate * (seconds + target_s[width if width < last else last])
            if value > best:
                best = value
        return best

    def best_siblings(self, width: int, reached: float, shares: Sequence[float]) -> int:
        """The number of siblings with the largest worth less their price.

        reached: probability that the chain before them is accepted. shares: probability that the
        first, second, .. sibling is accepted if that chain is.

        >>> Prices(1.0, [1.0, 1.1, 1.1, 1.1, 1.5], {}).best_siblings(1, 1.0, [0.2, 0.1, 0.05])
        2
        """
        target_s, last = self.target_s, len(self.target_s) - 1
        start, tokens, best, most = target_s[min(width, last)], 0.0, 0.0, 0
        for num, share in enumerate(shares, 1):
            tokens += reached * share
            value = tokens - self.rate * (target_s[min(width + num, last)] - start)
            if value > best:
                best, most = value, num
        return most


class GoodputMixer:
    """Chooses the writer of each token of a draft, ``drafter`` or a match, or ends the draft.

    Source: this project. The writer with the largest gain wins; the draft ends if no gain is >= 0.
    Update: after a token of ``drafter``, the probability of reaching the next position is
        multiplied by the acceptance of the token's confidence bin, which also sets the next token's
        acceptance; after a copied token, by the match's acceptance. All inputs are known before a
        token is drawn, and a drawn token is kept: lossless (``docs/verification.md``).
    ladders: by retrieval drafter, the acceptance of a token after a match of 1, 2, .. tokens.
    Branches: where retrieval proposes another token than the draft, its tokens become a branch
        while they are worth their price; they count only if the draft is rejected there.
    State: that probability, and the acceptance of the drafter's next token; by depth, the
        probability of reaching it and the acceptance of the copied token there (0 = a drawn one).
        For ``Goodput`` to learn from, by depth: departures, the drafter and bucket of a match that
        proposes another token; matched, the bucket of the longest match where ``drafter`` wrote.
    Cost: O(length) per token and candidate writer, a few microseconds.
    """

    def __init__(
        self,
        drafter: str,
        length: int,
        alpha: float,
        bins: Bins,
        prices: Prices,
        ladders: Mapping[str, Sequence[float]],
        branches: bool = True,
    ) -> None:
        self.drafter, self.length, self._branches = drafter, length, branches
        self._alpha, self._bins, self._prices, self._ladders = alpha, bins, prices, ladders
        self._reached, self._next, self._copied = 1.0, alpha, 0.0
        self._num_siblings = 0
        self._places: dict[int, tuple[float, float]] = {}
        self.departures: dict[int, tuple[str, int]] = {}
        self.matched: dict[int, int] = {}

    def pick(
        self,
        step: DraftStep,
        matches: Mapping[str, int],
        may_draft: bool = True,
        may_branch: bool = False,
    ) -> str | None:
        """The writer of the next token, as in ``protocols.Mixer``; None = the draft ends here."""
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
        width, gains = step.depth + self._num_siblings, dict[str, float]()
        for name, alphas in offers.items():
            gains[name] = self._prices.gain(width, self._reached, alphas, name)
        best = max(gains, key=gains.__getitem__, default=None)
        if best is None or gains[best] < 0:
            return None
        if best != self.drafter and may_draft and may_branch and self._adds(matches[best], width):
            best = self.drafter
        if best == self.drafter and (longest := max(matches.values(), default=0)):
            self.matched[step.depth] = bucket_of(longest)
        self._copied = 0.0 if best == self.drafter else offers[best][0]
        self._places[step.depth] = self._reached, self._copied
        return best

    def _adds(self, match: int, width: int) -> bool:
        """Whether a drawn token is worth its price in addition to a branch of the copied tokens."""
        prices = self._prices
        target_s, last = prices.target_s, len(prices.target_s) - 1
        seconds = target_s[min(width + 1, last)] - target_s[min(width, last)]
        seconds += prices.draft_s.get(self.drafter, 0.0)
        added = self._reached * self._bins.added.rate(bucket_of(match))
        return self._branches and added > prices.rate * seconds

    def num_siblings(self, step: DraftStep, room: int) -> int:
        """The number of siblings of the token that ``drafter`` wrote last, as in ``Mixer``.

        A sibling is dropped if the chain's last token, which it displaces, is likelier accepted.
        """
        index = bin_of(step.max_prob)
        shares, accepted = self._bins.siblings(index), self._bins.own.rate(index)
        width = step.depth + self._num_siblings
        num = self._prices.best_siblings(width, self._reached, shares)
        while num and shares[num - 1] < accepted * self._alpha ** (room - num):
            num -= 1
        self._num_siblings += num
        return num

    def branch(
        self, depth: int, confidence: float, matches: Mapping[str, int], width: int, room: int
    ) -> tuple[str, int]:
        """The drafter of the longest match, and how many of its tokens are worth their price."""
        matches = {name: match for name, match in matches.items() if name in self._ladders}
        if not matches or depth not in self._places:
            return "", 0
        name = max(matches, key=matches.__getitem__)
        row, ladder = bucket_of(matches[name]), self._ladders[name]
        self.departures[depth] = name, row
        reached, copied = self._places[depth]
        own = copied or self._bins.own.rate(bin_of(confidence))
        first = min(matches[name], len(ladder) - room)
        shares = accumulate(
            ladder[first : first + room - 1], operator.mul, initial=self._bins.branches.rate(row)
        )
        num = self._prices.best_siblings(width, reached * (1.0 - own), [*shares])
        return name, num if self._branches else 0

    def _see(self, step: DraftStep) -> None:
        if step.depth == 0:
            return
        if self._copied:
            self._reached, self._next = self._reached * self._copied, self._alpha
        else:
            index = bin_of(step.max_prob)
            self._reached *= self._bins.own.rate(index)
            self._next = self._bins.after.rate(index)
