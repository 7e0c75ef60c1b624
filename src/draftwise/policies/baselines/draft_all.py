"""DraftAll: every drafter drafts in every round, and all drafts are verified."""

from __future__ import annotations

from typing import ClassVar

from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.probability import one_hot
from draftwise.policies.parts.state import Fields, Kept
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats


class DraftAll(Kept):
    """Play all plans at once: the baseline that shows what drafting and verifying all costs.

    Source: MetaSD, section 4.2 (DraftALL, table 5): all drafters draft in each round, the best
        candidate counts, and the verification grows linearly with their number.
    Update: none; means are kept for people to look at.
    Differs: a decision names one plan, so its player must look at ``plays_all`` and draft
        every plan: the emitted tokens are those of the best draft, the seconds those of all of
        them. Where drafts are drawn from a q, they are branches of one tree, tried one after
        another; keeping the longest of several random drafts would change the output's law.
    Feedback: any. State: a Tally [K]. Cost: O(K) a round.
    Errors: ValueError from ``check_feedback``.

    >>> DraftAll(num_plans=3).plays_all
    True
    """

    plays_all: ClassVar[bool] = True

    KEPT: ClassVar[Fields] = {"tally": "_tally"}

    def __init__(self, num_plans: int) -> None:
        self._num_plans, self._tally = num_plans, Tally(num_plans)

    def choose(self) -> Decision:
        """Plan 0 stands for all of them."""
        return Decision(0, 1.0, self._tally.choose(0))

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Keep the means; they change no choice."""
        self._tally.add(*check_feedback(decision, feedback, self._num_plans))

    def probabilities(self) -> Floats:
        """[K] one-hot on plan 0, which stands for all."""
        return one_hot(0, self._num_plans)

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._tally.means()
