"""One request inside vLLM: its text, its policy, and what is being verified of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.drafters.protocol import Context
from draftwise.feedback import Revealer
from draftwise.protocols import Policy
from draftwise.types import PLAIN, Decision, Evidence, Floats, Plan, SamplingParams, Scores

_GREEDY = SamplingParams()
_NOTHING = Decision(0, 1.0, 0)
_NO_DRAFT: Floats = np.zeros(0)


def new_context(prompt: Sequence[int]) -> Context:
    """A text whose tokens say what the target does; retrieval draws nothing at random."""
    return Context(0, list(prompt), _GREEDY, np.random.default_rng(0))


@dataclass(slots=True)
class Row:
    """A running request; ``teaches``: whether what it learns may reach others.

    decision, played, draft: what vLLM verifies now; ``PLAIN`` and no tokens for no draft. ahead:
    what the policy chose for the round after it, where it has to choose that early.
    """

    context: Context
    policy: Policy
    revealer: Revealer
    teaches: bool = True
    decision: Decision = _NOTHING
    ahead: Decision | None = None
    played: Plan = PLAIN
    draft: tuple[int, ...] = ()

    def plays(self, decision: Decision, plan: Plan, draft: tuple[int, ...]) -> None:
        """A draft goes to vLLM; an empty one is plain decoding."""
        self.decision, self.played, self.draft = decision, plan if draft else PLAIN, draft

    def extend(self, emitted: Sequence[int]) -> None:
        """The text grew. Each token was drawn from p: in its place it stands for p, unbiased."""
        self.context.extend(emitted, list(emitted))

    def learn(
        self,
        outcome: Outcome,
        scores: Mapping[str, Scores],
        matches: Mapping[str, int],
        seconds: float,
    ) -> None:
        """All that a step made known of this request, told to its policy."""
        evidence = Evidence(
            plan=self.played if outcome.num_drafted else PLAIN,
            num_drafted=outcome.num_drafted,
            num_accepted=outcome.num_accepted,
            scores=scores,
            drafted_alphas=outcome.alphas(),
            emitted_start=outcome.start,
            seconds=seconds,
            matches=matches,
        )
        for made, feedback in self.revealer.reveal(self.decision, evidence):
            self.policy.learn(made, feedback)

    def meet(self, matches: Mapping[str, int]) -> None:
        """The prompt was read: round 0, of which the matches at its end are known."""
        evidence = Evidence(PLAIN, 0, 0, emitted_start=len(self.context.tokens), matches=matches)
        for made, feedback in self.revealer.reveal(_NOTHING, evidence):
            self.policy.learn(made, feedback)

    def finish(self) -> None:
        """Feedback still queued is delivered as far as it is known."""
        for made, feedback in self.revealer.flush():
            self.policy.learn(made, feedback)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one draft: where its text began, how long it was, how much of it was kept."""

    start: int
    num_drafted: int
    num_accepted: int

    @classmethod
    def of(cls, start: int, verified: Sequence[int], emitted: Sequence[int]) -> Outcome:
        """Of the drafted tokens that vLLM verified, and the tokens that it emitted.

        >>> Outcome.of(7, verified=[5, 6, 7], emitted=[5, 9])
        Outcome(start=7, num_drafted=3, num_accepted=1)
        """
        num = 0
        while num < min(len(verified), len(emitted)) and verified[num] == emitted[num]:
            num += 1
        return cls(start, len(verified), num)

    def judged(self) -> Floats:
        """[n] of the drafted tokens through the first rejection: 1 = kept, 0 = not."""
        alphas = np.ones(min(self.num_accepted + 1, self.num_drafted))
        alphas[self.num_accepted :] = 0.0
        return alphas

    def alphas(self) -> Floats:
        """[num_drafted] the same; what was not judged is not a number."""
        if not self.num_drafted:
            return _NO_DRAFT
        judged = self.judged()
        return np.concatenate([judged, np.full(self.num_drafted - len(judged), np.nan)])

    def scores(self) -> Scores:
        """What it says of the drafter that wrote it."""
        judged = self.judged()
        return Scores(self.start, judged, judged)
