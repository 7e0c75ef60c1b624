"""The contracts between rooms that have no torch in them: policy, reward, guide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from draftwise.types import Decision, DraftStep, Feedback, Floats, Outcome


class Policy(Protocol):
    """Which of K plans to play: one algorithm, its memory, and nothing else."""

    def choose(self) -> Decision:
        """Pick the plan of the next round."""
        ...

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Take the outcome of a decision, in any order, its own or replayed.

        Raises ValueError if a seen value is not a number in [0, 1] or a shape is not [K].
        """
        ...

    def probabilities(self) -> Floats:
        """[K] what ``choose`` would draw from now (one-hot for an index policy)."""
        ...

    def estimates(self) -> Floats:
        """[K] the present value of each plan as the policy sees it, for people to look at."""
        ...

    def state(self) -> dict[str, Any]:
        """The whole memory, random generator included, as what ``json.dumps`` takes."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a memory saved by a policy made with the same options.

        Raises ValueError if the memory belongs to another policy or another number of plans.
        """
        ...


class Reward(Protocol):
    """Maps what is known of one plan's outcome in one round to a value in [0, 1]."""

    def __call__(self, outcome: Outcome) -> float: ...


class Mixer(Protocol):
    """Inside one draft: who writes each token, asked before it is drawn; what is drawn stays."""

    drafter: str
    """The drafter that it may call beside those that retrieve."""
    length: int
    """Tokens of the draft, at most."""

    def pick(self, step: DraftStep, matches: Mapping[str, int]) -> str | None:
        """Who writes the next token: ``drafter``, or one of the ``matches``; None = nobody.

        matches: by retrieval drafter, the tokens of its match at the end of text and draft.
        """
        ...


class Guide(Protocol):
    """Inside a draft: whether to go on. Asked before a token is drawn, so nothing is dropped.

    One object serves one drafter in one request: it is asked with depth 0, 1, 2, ... while a draft
    grows, and told once how that draft ended. Two attributes more, for those that read hidden
    states: ``needs_hidden``, their size, and ``waits_for_hidden``, whether it must be the state of
    the token kept last, which costs a forward before the question.
    """

    needs_probs: bool
    is_pure: bool
    """Whether asking changes nothing, so that it may also be asked about others' drafts."""

    def goes_on(self, step: DraftStep) -> bool:
        """Whether one more token is drafted; never called past the plan's length."""
        ...

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """How many tokens the draft had, at least one, and how many of them were accepted."""
        ...
