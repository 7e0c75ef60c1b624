"""Feedback that a round's own evidence settles at once: bandit, prefix, free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from draftwise.feedback import Told
from draftwise.feedback.switching import SwitchingCost
from draftwise.feedback.valuer import Valuer, tail
from draftwise.protocols import Reward
from draftwise.types import Decision, Evidence, Plan


class Bandit:
    """Reveal the value of the played plan, and nothing else.

    Source: MetaSD, Algorithm 1; BanditSpec, Algorithm 3. Differs: none.
    State: the switching cost's. Cost: one reward a round. Errors: ValueError if ``switching`` (what
        a missed token costs, ``SwitchingCost``; the other kinds have it too) is below 0.

    >>> plans = [Plan("none", 0), Plan("a", 2)]
    >>> from draftwise.rewards.counts import Length
    >>> evidence = Evidence(plans[1], num_drafted=2, num_accepted=1)
    >>> [(_, feedback)] = Bandit(plans, Length()).reveal(Decision(1, 1.0, 1), evidence)
    >>> feedback.values.tolist(), feedback.seen.tolist()
    ([0.0, 0.5], [False, True])
    """

    panoramic: ClassVar[bool] = False
    every: ClassVar[int] = 1

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, switching: float = 0.0
    ) -> None:
        self._valuer = Valuer(plans, reward, SwitchingCost(switching))

    def reveal(self, decision: Decision, evidence: Evidence) -> Told:
        """The played plan's value."""
        known: dict[int, float] = {}
        if decision.round > 0:
            self._valuer.note(evidence)
            known = {decision.plan: self._valuer.played(decision.plan, evidence)}
        return [(decision, self._valuer.feedback(known, evidence))]

    def flush(self) -> Told:
        """Nothing waits."""
        return []


class Prefix:
    """Reveal every plan whose accepted count the played draft determines.

    On a chain, after ``a`` accepted tokens, length k of the same drafter and rule would have had
    min(a, k) accepted; a fully accepted draft of n tokens says this for k <= n only. The plan
    ``none`` emits one token, always. Of trees nothing but the played plan's value is known.

    Lengths beyond the played one are shown after a rejection only, so a policy that averages what
    it sees underrates them; ``longer=false`` shows none of them, and every mean is then unbiased.

    With ``rules=true`` also every rule that would have stopped the same draft: after s tokens it
    would have had min(a, s). A rule is then shown in the rounds in which it stops no later than the
    played one; unless it always does, means are off (``docs/stopping.md`` has figures).

    Source: this project's own (DESIGN section 1). Differs: none.
    State: the switching cost's. Cost: one reward for each plan of the drafter. Errors: as Bandit.

    >>> plans = [Plan("none", 0), Plan("a", 1), Plan("a", 2), Plan("a", 4), Plan("b", 1)]
    >>> from draftwise.rewards.counts import Length
    >>> evidence = Evidence(plans[2], num_drafted=2, num_accepted=2)
    >>> [(_, feedback)] = Prefix(plans, Length()).reveal(Decision(2, 1.0, 1), evidence)
    >>> feedback.values.tolist(), feedback.seen.tolist()
    ([0.0, 0.25, 0.5, 0.0, 0.0], [True, True, True, False, False])
    """

    panoramic: ClassVar[bool] = False
    every: ClassVar[int] = 1

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, switching: float = 0.0,
        longer: bool = True, rules: bool = False,
    ) -> None:  # fmt: skip
        self._valuer, self._longer = Valuer(plans, reward, SwitchingCost(switching)), longer
        self.compares_rules = rules

    def reveal(self, decision: Decision, evidence: Evidence) -> Told:
        """The values of all lengths that the draft determines."""
        known: dict[int, float] = {}
        if decision.round > 0:
            self._valuer.note(evidence)
            known = self._valuer.prefixes(
                decision.plan, evidence, self._longer, self.compares_rules
            )
        return [(decision, self._valuer.feedback(known, evidence))]

    def flush(self) -> Told:
        """Nothing waits."""
        return []


class Free:
    """Reveal all that is known without one more forward; always, and at once.

    The played drafter's lengths as ``Prefix`` does (``longer``, ``rules`` too), and every other
    drafter (retrieval, backlog) whose scores cover the round's positions, as far as the reward is
    determined by them. The evidence is delivered even when no value is.

    Source: this project's own (DESIGN section 1). Differs: none.
    State: the switching cost's. Cost: one reward for each plan that is scored. Errors: as Bandit.

    >>> plans = [Plan("none", 0), Plan("a", 1), Plan("lookup", 1)]
    >>> import numpy as np
    >>> from draftwise.rewards.counts import Length
    >>> from draftwise.types import Scores
    >>> scores = {"lookup": Scores(7, np.array([0.25]), np.array([0.25]), np.array([3]))}
    >>> evidence = Evidence(plans[1], 1, 1, scores, emitted_start=7)
    >>> [(_, feedback)] = Free(plans, Length()).reveal(Decision(1, 1.0, 1), evidence)
    >>> feedback.values.tolist()
    [0.0, 1.0, 0.25]
    """

    panoramic: ClassVar[bool] = False
    every: ClassVar[int] = 1

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, switching: float = 0.0,
        longer: bool = True, rules: bool = False,
    ) -> None:  # fmt: skip
        self._valuer, self._longer = Valuer(plans, reward, SwitchingCost(switching)), longer
        self.compares_rules = rules

    def reveal(self, decision: Decision, evidence: Evidence) -> Told:
        """The values of all plans that the evidence covers, and the evidence itself."""
        known: dict[int, float] = {}
        if decision.round > 0:
            self._valuer.note(evidence)
            for name, scores in evidence.scores.items():
                if name != evidence.plan.drafter:
                    known |= self._valuer.scored(name, *tail(scores, evidence.emitted_start))
            known |= self._valuer.prefixes(
                decision.plan, evidence, self._longer, self.compares_rules
            )
        return [(decision, self._valuer.feedback(known, evidence))]

    def flush(self) -> Told:
        """Nothing waits."""
        return []
