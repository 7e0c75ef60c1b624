"""Feedback determined by a round's own evidence: bandit, prefix, free."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwise.checks import flag
from draftwise.feedback import DueFeedback
from draftwise.feedback.values import RewardEvaluator, ScoreHistory, SwitchingCost
from draftwise.protocols import Reward, looks_ahead
from draftwise.types import Decision, Evidence, Plan

MAX_WAIT = 64
"""Tokens of text after which a pending value is dropped; no backlog is longer."""


@dataclass(frozen=True, slots=True)
class PendingFeedback:
    """A round's first token and width, and the drafters whose values from there are pending."""

    decision: Decision
    start: int
    width: int
    names: set[str]


class AtOnce:
    """Reveals what a round itself determines.

    switching: cost of a missed token, at least 0 (``SwitchingCost``).
    """

    panoramic: ClassVar[bool] = False
    compares_rules = False
    every: ClassVar[int] = 1

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, switching: float = 0.0
    ) -> None:
        self._evaluator = RewardEvaluator(plans, reward, SwitchingCost(switching))

    def _known(self, decision: Decision, evidence: Evidence) -> dict[int, float]:
        raise NotImplementedError

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        known: dict[int, float] = {}
        if decision.round > 0:
            self._evaluator.note(evidence)
            known = self._known(decision, evidence)
        return [(decision, self._evaluator.feedback(known, evidence))]

    def flush(self) -> DueFeedback:
        return []


class Bandit(AtOnce):
    """Reveal the value of the played plan, and nothing else.

    Source: MetaSD, Algorithm 1; BanditSpec, Algorithm 3. Differs: none.
    """

    def _known(self, decision: Decision, evidence: Evidence) -> dict[int, float]:
        return {decision.plan: self._evaluator.played(decision.plan, evidence)}


class Prefix(AtOnce):
    """Reveal every plan whose accepted count the played draft determines.

    On a chain, after ``a`` accepted tokens, length k of the same drafter and rule would have had
    min(a, k) accepted; a fully accepted draft of n tokens says this for k <= n only. The plan
    ``none`` always emits one token. Of trees only the played plan's value is known.

    Lengths beyond the played one are shown after a rejection only, so a policy that averages what
    it sees underrates them; ``longer=false`` shows none of them, and every mean is then unbiased.

    With ``rules=true`` also every rule that would have stopped the same draft: after s tokens it
    would have had min(a, s). A rule is then shown in the rounds in which it stops no later than the
    played one; unless it always does, means are off (``docs/stopping.md`` has figures).

    Source: this project's own. Cost: one reward for each plan of the drafter.

    >>> plans = [Plan("none", 0), Plan("a", 1), Plan("a", 2), Plan("a", 4), Plan("b", 1)]
    >>> from draftwise.rewards.tokens import Length
    >>> evidence = Evidence(plans[2], num_drafted=2, num_accepted=2)
    >>> [(_, feedback)] = Prefix(plans, Length()).reveal(Decision(2, 1.0, 1), evidence)
    >>> feedback.values.tolist(), feedback.seen.tolist()
    ([0.0, 0.25, 0.5, 0.0, 0.0], [True, True, True, False, False])
    """

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, switching: float = 0.0,
        longer: bool = True, rules: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(plans, reward, switching)
        self._longer = flag("longer", longer)
        self.compares_rules = flag("rules", rules)

    def _known(self, decision: Decision, evidence: Evidence) -> dict[int, float]:
        return self._evaluator.prefixes(decision.plan, evidence, self._longer, self.compares_rules)


class Free(Prefix):
    """Reveal all that is known without one more forward, each value as soon as it is determined.

    The played drafter's lengths as ``Prefix`` does (``longer``, ``rules`` too), at once; of every
    other drafter (retrieval, backlog) the values along the verified text from the round's first
    token on, once as many of its tokens are scored as its longest plan has: later, in feedback of
    its own, unless the round emitted them. The evidence is always delivered at once.

    Source: this project's own; the delay is HedgeSpec's (section 3.3, appendix B.4): without it
        the values would be those of bad rounds only, since a short round leaves a good drafter's
        length open and a bad one's not.
    Differs: what the text's end, or a gap that was not scored, leaves open is never revealed.
    State: alphas by drafter and position; the rounds that wait, with the drafters they wait for,
        for ``MAX_WAIT`` tokens of text at most. Cost: one reward for each plan that is scored.
    """

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, switching: float = 0.0,
        longer: bool = True, rules: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(plans, reward, switching, longer, rules)
        self._history = ScoreHistory(self._evaluator.drafters)
        self._waiting: deque[PendingFeedback] = deque()

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        """What has become due of earlier rounds, then this one's values and the evidence itself."""
        if decision.round == 0 or self._evaluator.reward is None:
            return [(decision, self._evaluator.feedback({}, evidence))]
        self._history.note(evidence)
        self._evaluator.note(evidence)
        told = []
        for earlier in self._waiting:
            if known := self._due(earlier):
                told.append((earlier.decision, self._evaluator.feedback(known, None)))
        others = self._evaluator.drafters - {evidence.plan.drafter}
        start = evidence.emitted_start
        own = PendingFeedback(decision, start, evidence.num_emitted, others)
        known = self._due(own) | self._known(decision, evidence)
        self._waiting = deque(
            w for w in [*self._waiting, own] if w.names and w.start > start - MAX_WAIT
        )
        self._history.forget(self._waiting[0].start if self._waiting else start)
        return [*told, (decision, self._evaluator.feedback(known, evidence))]

    def flush(self) -> DueFeedback:
        """Nothing: what waits is open, and stays so."""
        self._waiting.clear()
        return []

    def _due(self, step: PendingFeedback) -> dict[int, float]:
        """The values of the drafters that are scored far enough; they wait no longer."""
        known: dict[int, float] = {}
        is_far = looks_ahead(self._evaluator.reward)
        for name in sorted(step.names):
            window = self._evaluator.longest_of(name) if is_far else step.width
            if self._history.ends[name] < step.start + window:
                continue
            alphas, ratios = self._history.run(name, step.start, window)
            if len(alphas) == window:
                known |= self._evaluator.scored(name, alphas, ratios)
                step.names.discard(name)
        return known
