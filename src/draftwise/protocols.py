"""The contracts of policies, rewards, stop rules and mixers, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

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

    def state(self) -> dict[str, Any]:
        """The whole state, random generator included, as values that ``json.dumps`` accepts."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state saved by a policy with the same options.

        Raises ValueError if the state belongs to another policy or another number of plans.
        """


@runtime_checkable
class ProbingPolicy(Protocol):
    """A policy that names the drafters worth a probe; no others are probed."""

    def drafters_to_probe(self, num_rows: int = 1) -> Sequence[str]:
        """Drafters to score on the last tokens now, though they did not draft them.

        Called after the free scores of a prompt, and after each round. num_rows: rows of the batch,
        which wait meanwhile.
        """


@runtime_checkable
class Mixing(Protocol):
    """A policy whose drafts several drafters may write; None = only the plan's drafter does."""

    mixer: Mixer | None


@runtime_checkable
class PlayingAll(Protocol):
    """A policy whose choice stands for one plan of every drafter (``draft-all``)."""

    plays_all: ClassVar[bool]


@runtime_checkable
class PricingPlans(Protocol):
    """A policy that prices plans by the evidence, and needs no reward to value them."""

    prices_plans: ClassVar[bool]

    @property
    def advantage(self) -> float:
        """Speed of the plan that it chose last, over that of plain decoding."""


@runtime_checkable
class Routing(Protocol):
    """A policy that looks at the prompt."""

    def route(self, prompt: str) -> int:
        """Pick the plan of this prompt's request, and return it."""


class RequestMemory(Protocol):
    """Memory that the requests of a ``Remembering`` policy share."""

    def state(self) -> dict[str, Any]:
        """The whole memory as values that ``json.dumps`` accepts."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved memory, all or nothing; ValueError for anything else."""


@runtime_checkable
class Remembering(Protocol):
    """A policy of one request that starts from what earlier requests learnt."""

    def new_memory(self) -> RequestMemory:
        """An empty memory for policies of the same options and plans."""

    def recall(
        self, memory: Any, prompt: Sequence[int], label: str = "", private: bool = False
    ) -> None:
        """Begin a request; ``memory``, one of ``new_memory``, learns from it unless ``private``.

        prompt: its tokens. label: its kind, such as a task or a template.
        """


class Reward(Protocol):
    """Maps the outcome of one plan in one round to a value in [0, 1]."""

    def __call__(self, outcome: Outcome) -> float: ...


def looks_ahead(reward: Reward | None) -> bool:
    """Whether a reward needs the alphas of as many positions as a plan is long."""
    return bool(getattr(reward, "looks_ahead", True))  # a plain function may


class Mixer(Protocol):
    """Names the drafter of each token of one draft before it is drawn; drawn tokens stay.

    drafter: the one that it may call besides those that retrieve. length: maximum tokens.
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

        matches: by retrieval drafter, the tokens of its match at the end of text and draft.
        may_draft: whether ``drafter`` can continue here: a head cannot after copied tokens.
        may_branch: whether ``branch`` will be called, as the target verifies trees.
        """

    def num_siblings(self, step: DraftStep, room: int) -> int:
        """How many alternatives of the token that ``drafter`` wrote last are verified, too.

        room: tokens that the draft may still have, alternatives included. The number may depend on
        what was known before that token was drawn, its distribution included, but not on the token.
        """

    def branch(
        self, depth: int, confidence: float, matches: Mapping[str, int], width: int, room: int
    ) -> tuple[str, int]:
        """Whose copied tokens are verified next to the draft's token at this depth, and how many.

        Called when the draft is complete. confidence: max q of the draft's token, NaN if it was
        copied. matches: by drafter that proposes another token, the length of its match. width:
        tokens of the draft so far. room: most tokens of the branch.
        """


class StopRule(Protocol):
    """Decides inside a draft whether to draft another token, before that token is drawn.

    One object serves one drafter in one request. It is called with depth 0, 1, 2, ... while a draft
    grows, and learns once how that draft was verified.

    never_stops: it always continues, so no draft need be read while it grows. needs_probs: it reads
    probabilities of the token kept last. waits_for_hidden: it reads the hidden state at that token,
    which takes a forward first. is_pure: calls change nothing, so it may see others' drafts, too.
    """

    never_stops: bool
    needs_probs: bool
    waits_for_hidden: bool
    is_pure: bool

    @property
    def needs_hidden(self) -> int:
        """Size of the drafter's hidden states that the rule reads; 0 = none."""

    def should_continue(self, step: DraftStep) -> bool:
        """Whether to draft one more token; never called beyond the plan's length."""

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a verified draft: its numbers of tokens (at least one) and accepted tokens."""
