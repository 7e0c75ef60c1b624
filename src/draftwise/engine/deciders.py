"""What decides for one request: which plan it plays, whether it drafts, and what it learns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from draftwise.bandits.feedback import DueFeedback, FeedbackBuilder
from draftwise.controller.goodput import Goodput
from draftwise.engine.guards import GuardedMixer
from draftwise.protocols import Mixer, Policy, StopRule
from draftwise.types import PLAIN, Costs, Decision, Evidence, Floats, Plan, RoundFacts, Scores

T = TypeVar("T")


class Bandits:
    """The papers' way: a policy chooses one plan for each round, and feedback values the plans.

    The first exception of the policy or feedback disables the drafts of the request, with a
    warning. There is no guard, and there are no prices and no probes.
    """

    is_guarded = False  # whether the guard may suspend the drafts
    probes = False  # whether drafters that did not draft are scored where that is worth its time

    def __init__(
        self, request: int, policy: Policy, feedback: FeedbackBuilder, plans: Sequence[Plan],
        stop_rules: Mapping[tuple[str, str], StopRule], *, scores_prompt: bool = False,
    ) -> None:  # fmt: skip
        self._request = request  # its id, for the warning
        self.policy = policy  # shared by the requests of a scope, if the scope shares one
        self.feedback = feedback
        self.plans = plans
        self.stop_rules = stop_rules  # by drafter and spec
        self.scores_prompt = scores_prompt  # whether drafters are scored on the prompt
        self.is_idle = False  # the policy or feedback raised: no more drafts
        self.pending: Decision | None = None  # it waits for its drafter to catch up
        self.num_unseen = 0  # emitted tokens from which the policy has not learnt

    @cached_property
    def longest(self) -> int:
        """Maximum tokens of a draft; read in every round, and the plans do not change."""
        return max((plan.num_tokens for plan in self.plans), default=0)

    @property
    def plain(self) -> Decision:
        return Decision(self.plans.index(PLAIN) if PLAIN in self.plans else 0, 1.0, 0)

    def choose(self) -> Decision:
        """The decision for this round; one that waits for its drafter is kept."""
        if self.pending is not None:
            return self.pending
        return self._ask(lambda: self._checked(self.policy.choose()), self.plain)

    def plan_of(self, decision: Decision) -> Plan:
        return PLAIN if self.is_idle else self.plans[decision.plan]

    @property
    def can_rest(self) -> bool:
        """Whether a round may skip the policy, whose decision matters only if drafts pay."""
        return False

    @property
    def advantage(self) -> float:
        """Expected gain of the plan chosen last, relative to its price; 0 = no draft pays."""
        return 0.0

    @property
    def mixer(self) -> Mixer | None:
        """Chooses the drafter of each token of a mixed draft; None = one drafter per draft."""
        return None

    def drafters_to_probe(self, num_rows: int) -> Sequence[str]:
        """Drafters to score now on tokens that they did not draft; num_rows: rows that wait."""
        return ()

    @property
    def reads_everything(self) -> bool:
        """Whether the feedback ever needs scores of every drafter (panoramic)."""
        return self._ask(lambda: bool(self.feedback.panoramic), False)

    def is_panoramic(self, number: int) -> bool:
        """Whether the feedback of round ``number``, from 1 on, needs scores of every drafter."""
        return self.reads_everything and self._ask(lambda: number % self.feedback.every == 0, False)

    def scored(
        self, scores: Mapping[str, Scores], start: int, costs: Costs, matches: Mapping[str, int],
        num_left: int,
    ) -> None:  # fmt: skip
        """Learn from scores on the prompt of ``start`` tokens, as from a round without a draft."""
        evidence = RoundFacts(
            PLAIN, 0, 0, scores, emitted_start=start, costs=costs, matches=matches,
            num_left=num_left,
        )  # fmt: skip
        self.observe(Decision(0, 1.0, 0), evidence)

    def observe(self, decision: Decision, evidence: Evidence) -> None:
        """Update the stop rule with the verified draft, and the policy with completed feedback."""
        rule = self.stop_rules.get((evidence.plan.drafter, evidence.plan.rule))
        has_chain = evidence.num_drafted > 0 and evidence.plan.tree is None
        if rule is not None and has_chain:
            rule.learn(evidence.num_drafted, evidence.num_accepted)
        self._ask(lambda: self._teach(self.feedback.reveal(decision, evidence)), None)
        self.num_unseen = 0

    def end(self) -> None:
        """Learn from queued feedback after the request has ended."""
        self._ask(lambda: self._teach(self.feedback.flush()), None)

    def estimates(self) -> Floats:
        """[K] the policy's value of each plan; zeros after an exception."""
        return self._ask(self._checked_estimates, np.zeros(len(self.plans)))

    def _ask(self, what: Callable[[], T], instead: T) -> T:
        """Call the policy or feedback; its first exception disables drafting for the request."""
        if not self.is_idle:
            try:
                return what()
            except Exception as error:
                self.is_idle, self.pending = True, None
                warnings.warn(
                    f"the policy or feedback of request {self._request} failed ({error!r}): "
                    "this request continues without drafts",
                    stacklevel=3,
                )
        return instead

    def _checked(self, decision: Any) -> Decision:
        if not isinstance(decision, Decision) or not isinstance(decision.plan, Integral):
            raise TypeError(f"it chose {decision!r}, which is no Decision for a plan's index")
        if not 0 <= decision.plan < len(self.plans) or not math.isfinite(decision.prob):
            raise ValueError(f"it chose {decision!r}, of {len(self.plans)} plans")
        return decision

    def _checked_estimates(self) -> Floats:
        found = np.asarray(self.policy.estimates(), dtype=np.float64)
        if found.shape != (len(self.plans),):
            raise ValueError(f"its estimates have the shape {found.shape}, of {len(self.plans)}")
        return found

    def _teach(self, due: DueFeedback) -> None:
        for made, feedback in due:
            self.policy.learn(made, feedback)


class Controlled(Bandits):
    """draftwise's own way: prices tokens, mixes drafters in a draft, probes, and has a guard."""

    is_guarded = True
    probes = True
    policy: Goodput

    @property
    def can_rest(self) -> bool:
        return self.pending is None and not self.reads_everything

    @property
    def advantage(self) -> float:
        return self._ask(lambda: float(self.policy.advantage), 0.0)

    @property
    def mixer(self) -> Mixer | None:
        policy = self.policy
        return self._ask(lambda: policy.mixer and GuardedMixer(policy.mixer, self._ask), None)

    def drafters_to_probe(self, num_rows: int) -> Sequence[str]:
        policy = self.policy
        return self._ask(lambda: tuple(map(str, policy.drafters_to_probe(num_rows))), ())
