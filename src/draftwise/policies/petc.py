"""Pure exploration, then commit: Sequential Halving for a share of the request that is its log."""

from __future__ import annotations

import math
from typing import ClassVar

from draftwise.checks import MANY, optional, scale, whole
from draftwise.policies.parts.state import Fields, Kept
from draftwise.policies.sequential_halving import SequentialHalving
from draftwise.types import Decision, Feedback, Floats

_TOKENS = 512  # of a request of which nothing is known


def exploration_budget(c: float, num_tokens: int) -> int:
    """Rounds of exploration, ``B0 = c ln B``, at least 1.

    >>> exploration_budget(10.0, 512)
    62
    """
    return max(1, math.floor(c * math.log(num_tokens)))


class PETC(Kept):
    """Explore for ``c ln B`` rounds by Sequential Halving, then play the survivor for ever.

    Source: MetaSD, Algorithm 4 and Theorem 8 (B0 = c ln B).
    Update: Algorithm 5 with budget B0; it ends with one survivor, and that is the commitment.
    Differs: (1) B0 counts rounds, the box's l counts tokens, of which a round emits one or more;
        (2) the paper leaves c open: at 4, the default, 7 drafters are tried once or twice in each
        phase, 17 rounds of a request of 200 tokens; B is the most that the request may emit, or
        ``num_tokens``, and 512 where neither is known.
    Feedback: as SequentialHalving. State: that of its SequentialHalving. Cost: O(K) a round.
    Errors: ValueError if c is not from 1e-6 to 1e6 or num_tokens is below 1.

    >>> policy = PETC(num_plans=2, c=1.0)
    >>> policy.choose().plan, policy.choose().plan
    (0, 1)
    """

    KEPT: ClassVar[Fields] = {"explorer": "_explorer"}

    def __init__(
        self, num_plans: int, c: float = 4.0, num_tokens: int | None = None,
        request_tokens: int | None = None,
    ) -> None:  # fmt: skip
        own = optional(whole, "num_tokens", num_tokens, 1)
        known = [tokens for tokens in (own, request_tokens, _TOKENS) if tokens is not None]
        budget = exploration_budget(scale("c", c), known[0])
        self._explorer = SequentialHalving(num_plans, min(budget, MANY))

    def choose(self) -> Decision:
        """A survivor, or the one that is left."""
        return self._explorer.choose()

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Count the seen values."""
        self._explorer.learn(decision, feedback)

    def probabilities(self) -> Floats:
        """[K] one-hot on the plan that ``choose`` would play."""
        return self._explorer.probabilities()

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._explorer.estimates()
