"""The contracts of policies, rewards, stop rules and mixers, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from draftwise.types import Decision, DraftStep, Feedback, Floats, Outcome


class Policy(Protocol):
    """Chooses one of K plans in each round, and learns from the outcome."""

    def choose(self) -> Decision:
        """Choose the plan of the next round."""

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Learn from the outcome of a decision; outcomes may arrive in any order.

        Raises ValueError if a seen value is not a number in [0, 1] or a shape is not [K].
        """

    def probabilities(self) -> Floats:
        """[K] the probabilities from which ``choose`` would draw (one-hot for an index policy)."""

    def estimates(self) -> Floats:
        """[K] the policy's current value of each plan, for display."""


class Reward(Protocol):
    """Maps the outcome of one plan in one round to a value in [0, 1]."""

    def __call__(self, outcome: Outcome) -> float: ...


def looks_ahead(reward: Reward) -> bool:
    """Whether a reward needs the alphas at all positions of a plan's length."""
    return bool(getattr(reward, "looks_ahead", True))  # a plain function may


class Mixer(Protocol):
    """Chooses the drafter of each token of a draft before the token is drawn; no token is redrawn.

    drafter: the drafter that it may call besides retrieval drafters. length: maximum tokens.
    """

    drafter: str
    length: int

    def pick(
        self,
        step: DraftStep,
        matches: Mapping[str, int],
        may_draft: bool = True,
        may_branch: bool = False,
    ) -> str | None:
        """The next token's drafter: ``drafter``, or one of the ``matches``; None ends the draft.

        matches: by retrieval drafter, length of its match at the end of text and draft.
        may_draft: whether ``drafter`` can continue here; a head cannot after copied tokens.
        may_branch: whether ``branch`` will be called, because the target verifies trees.
        """

    def num_siblings(self, step: DraftStep, room: int) -> int:
        """Number of alternatives to the last token of ``drafter`` that are verified, too.

        room: tokens that the draft may still have, including alternatives. The number may depend on
        the state before that token was drawn, including its distribution, but not on the token.
        """

    def branch(
        self, depth: int, confidence: float, matches: Mapping[str, int], width: int, room: int
    ) -> tuple[str, int]:
        """The drafter whose copied tokens are verified as a branch at this depth, and how many.

        Called when the draft is complete. confidence: max q of the draft's token, NaN if it was
        copied. matches: by drafter that proposes another token, the length of its match. width:
        tokens of the draft so far. room: maximum tokens of the branch.
        """


class StopRule(Protocol):
    """Decides during drafting whether to draft another token, before that token is drawn.

    One object serves one drafter in one request. It is called with depth 0, 1, 2, ... while a draft
    grows, and learns once how that draft was verified.

    never_stops: the rule always continues, so a draft need not be read while it grows. needs_probs:
    it uses probabilities of the last token. waits_for_hidden: it uses the hidden state at that
    token, which takes a forward first.
    """

    never_stops: bool
    needs_probs: bool
    waits_for_hidden: bool

    @property
    def needs_hidden(self) -> int:
        """Size of the drafter's hidden states that the rule reads; 0 = none."""

    def should_continue(self, step: DraftStep) -> bool:
        """Whether to draft one more token; never called beyond the plan's length."""

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a verified draft: its numbers of tokens (at least one) and accepted tokens."""
