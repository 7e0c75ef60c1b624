"""Feedback reveals a round's values: of the played plan, its prefixes, all free ones, or all plans.

The engine passes each round's decision and evidence to ``reveal``, and the results to the policy,
in order; at the end of a request it passes on the results of ``flush``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import numpy as np

from draftwise.bandits.rewards import Acceptance
from draftwise.checks import LARGE, MANY, flag, number, optional, whole
from draftwise.protocols import Reward, looks_ahead
from draftwise.types import LONGEST_PLAN, NONE, Decision, Evidence, Feedback, Floats, Outcome, Plan

DueFeedback = list[tuple[Decision, Feedback]]
"""Feedback that is due, with its decisions, in the order in which to learn it."""


class FeedbackBuilder(Protocol):
    """Turns evidence into feedback, at once or later; one per request.

    panoramic: whether the engine must score every drafter on the verified text. every: rounds per
    such scoring; may change during a request.
    """

    panoramic: bool

    @property
    def every(self) -> int: ...

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        """Feedback that the policy may already learn from, in order; may be empty."""

    def flush(self) -> DueFeedback:
        """Pending feedback at the end of the request, as far as its values are known."""


MAX_WAIT = 64  # tokens of text after which a pending value is dropped; scores lag no further


class SwitchingCost:
    """Charge a drafter for the tokens it missed since it last played.

    Source: MetaSD, appendix H.1: lambda (l(t) - l(tau_i(t))) 1[a_{t-1} != a_t], with l(t) the
        tokens processed by round t and tau_i(t) the last round in which drafter i played.
    Differs: (1) lambda is in units of value, not of rounds; (2) before its first round a drafter
        has missed the tokens emitted so far, not the prompt; (3) retrieval keeps no cache and
        ``none`` drafts nothing: both are free.
    State: the text position that each drafter has reached, and that of the first round.

    >>> cost = SwitchingCost(per_token=0.01)
    >>> rounds = [("a", 100), ("a", 103), ("b", 106), ("a", 109)]
    >>> [cost.charge(Evidence(Plan(d, 2), 2, 2, emitted_start=at)) for d, at in rounds]
    [0.0, 0.0, 0.06, 0.03]
    """

    def __init__(self, per_token: float) -> None:
        self._per_token = number("switching", per_token, 0, LARGE)
        self._reached: dict[str, int] = {}
        self._first: int | None = None

    def charge(self, evidence: Evidence) -> float:
        drafter, start = evidence.plan.drafter, evidence.emitted_start
        self._first = start if self._first is None else self._first
        scores = evidence.scores.get(drafter)
        is_free = drafter == NONE or (scores is not None and scores.matches is not None)
        missed = start - self._reached.get(drafter, self._first)  # 0 if it played last
        self._reached[drafter] = start + evidence.num_emitted
        return 0.0 if is_free else self._per_token * missed


_ROUNDING = 1e-6
_EMPTY: Floats = np.zeros(0)


class RewardEvaluator:
    """The values of all plans of a policy under one reward, and its cost of switching."""

    def __init__(self, plans: Sequence[Plan], reward: Reward, switching: float = 0.0) -> None:
        self._switching, self._charge = SwitchingCost(switching), 0.0
        self.plans, self.reward = list(plans), reward
        self.max_length = max(plan.length for plan in plans)
        self.drafters = {plan.drafter for plan in plans} - {NONE}
        self._of: dict[str, list[int]] = {}
        for index, plan in enumerate(plans):
            self._of.setdefault(plan.drafter, []).append(index)

    def longest_of(self, drafter: str) -> int:
        return max(self.plans[index].length for index in self._of[drafter])

    def note(self, evidence: Evidence) -> None:
        """Start a round: its drafter's switching cost is charged to all plans of that drafter."""
        self._charge = self._switching.charge(evidence)

    def feedback(self, known: dict[int, float], more: int = 0) -> Feedback:
        """Feedback of the values, as [K] arrays; NaN is not seen. known: the value by plan."""
        values, seen = np.zeros(len(self.plans)), np.zeros(len(self.plans), dtype=np.bool_)
        for index, value in known.items():
            if not math.isnan(value):
                values[index], seen[index] = value, True
        return Feedback(values, seen, more)

    def played(self, index: int, evidence: Evidence) -> float:
        return self._value(index, evidence, evidence.num_drafted, evidence.seconds)

    def prefixes(self, index: int, evidence: Evidence, longer: bool) -> dict[int, float]:
        """Values that the played draft determines. longer: include longer plans."""
        known = self.nothing_drafted()
        for other in self._of.get(evidence.plan.drafter, []):
            plan, played = self.plans[other], evidence.plan
            num_drafted = drafted_by(plan, evidence)
            if num_drafted is not None and (longer or plan.length <= played.length):
                known[other] = self._value(other, evidence, num_drafted)
        known[index] = self.played(index, evidence)
        return known

    def nothing_drafted(self, most: int = LONGEST_PLAN) -> dict[int, float]:
        """The value of the plan ``none``: no draft, one token; ``most`` as in ``scored``."""
        rest = min(self.max_length, most), _EMPTY, _EMPTY, _EMPTY, 0, 0
        plans = self._of.get(NONE, [])
        return {index: self._judge(Outcome(self.plans[index], *rest)) for index in plans}

    def scored(
        self, drafter: str, alphas: Floats, ratios: Floats, most: int = LONGEST_PLAN
    ) -> dict[int, float]:
        """Values of a drafter's plans from its alphas along the verified text.

        most: caps all lengths, including the longest, at this number of tokens (chunk-level game).
        """
        values: dict[int, float] = {}
        longest = min(self.max_length, most)
        for index in self._of.get(drafter, []):
            plan = self.plans[index]
            if plan.length > longest:
                plan = Plan(plan.drafter, longest, plan.rule)
            values[index] = self._judge(Outcome(plan, longest, alphas, ratios, alphas))
        return values

    def _value(
        self, index: int, evidence: Evidence, num_drafted: int, seconds: float = 0.0
    ) -> float:
        """The value of a plan whose accepted count is known from the played draft."""
        scores = evidence.scores.get(evidence.plan.drafter)
        alphas = ratios = _EMPTY
        if scores is not None and evidence.emitted_start >= scores.start:
            first = evidence.emitted_start - scores.start
            alphas, ratios = scores.alphas[first:], scores.ratios[first:]
        outcome = Outcome(
            self.plans[index], self.max_length, alphas, ratios, evidence.drafted_alphas,
            num_drafted, min(evidence.num_accepted, num_drafted), seconds,
        )  # fmt: skip
        return max(self._judge(outcome) - self._charge, 0.0)

    def _judge(self, outcome: Outcome) -> float:
        """The reward's value, with rounding errors at 0 and 1 removed."""
        value = self.reward(outcome)
        return min(max(value, 0.0), 1.0) if -_ROUNDING <= value <= 1.0 + _ROUNDING else value


def drafted_by(plan: Plan, evidence: Evidence) -> int | None:
    """Number of tokens that a plan of the played drafter would have drafted; None = unknown.

    >>> evidence = Evidence(Plan("a", 4), num_drafted=4, num_accepted=1)
    >>> drafted_by(Plan("a", 2), evidence), drafted_by(Plan("a", 8), evidence)
    (2, 8)
    """
    drafted, is_full = evidence.num_drafted, evidence.num_accepted == evidence.num_drafted
    if plan.rule != evidence.plan.rule or plan.tree is not None or evidence.plan.tree is not None:
        return None
    if plan.length <= drafted:
        return plan.length
    if is_full:
        return None
    if drafted < evidence.plan.length:
        return drafted  # the drafter ended the draft; a longer plan would not change that
    return plan.length if plan.rule == "fixed" else None


class ScoreHistory:
    """The alphas and ratios of every drafter, from the oldest position that is still needed.

    State: by drafter, (alpha, ratio) by position; ``ends``, the position after the last scored.

    >>> from draftwise.types import PLAIN, Scores
    >>> history = ScoreHistory(["a"])
    >>> history.note(Evidence(PLAIN, 0, 0, {"a": Scores(7, np.array([0.5, 0.25]), np.ones(2))}))
    >>> history.run("a", 8, 4)[0].tolist(), history.ends
    ([0.25], {'a': 9})
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.ends = dict.fromkeys(names, 0)
        self._pairs: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in self.ends}
        self._low = 0

    def __len__(self) -> int:
        return sum(map(len, self._pairs.values()))

    def note(self, evidence: Evidence) -> None:
        for name in self._pairs.keys() & evidence.scores.keys():
            scores, known = evidence.scores[name], self._pairs[name]
            pairs = zip(scores.alphas.tolist(), scores.ratios.tolist(), strict=True)
            for position, pair in enumerate(pairs, scores.start):
                if position >= self._low:
                    known[position] = pair
            self.ends[name] = max(self.ends[name], scores.start + len(scores.alphas))

    def run(self, name: str, start: int, num: int) -> tuple[Floats, Floats]:
        """Alphas and ratios from position ``start`` up to the first gap."""
        pairs = self._pairs[name]
        known = takewhile(pairs.__contains__, range(start, start + num))
        columns = np.array([pairs[position] for position in known], np.float64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1]

    def forget(self, low: int) -> None:
        for known in self._pairs.values():
            for position in range(self._low, low):
                known.pop(position, None)
        self._low = max(self._low, low)


@dataclass(frozen=True, slots=True)
class PendingFeedback:
    """Feedback with pending values, for ``width`` tokens of the text from ``start`` on.

    evidence: of the round, for its first tokens. more: as in ``Feedback``. names: drafters that are
    not scored far enough.
    """

    decision: Decision
    start: int
    width: int
    evidence: Evidence | None = None
    more: int = 0
    names: set[str] = field(default_factory=set)


class Bandit:
    """Reveal the value of the played plan, and nothing else.

    Source: MetaSD, Algorithm 1; BanditSpec, Algorithm 3. Differs: none. switching: cost per token.
    """

    panoramic = False
    every = 1

    def __init__(self, plans: Sequence[Plan], reward: Reward, switching: float = 0.0) -> None:
        self._evaluator = RewardEvaluator(plans, reward, switching)
        self._history = ScoreHistory(self._evaluator.drafters)
        self._waiting: deque[PendingFeedback] = deque()

    def _known(self, decision: Decision, evidence: Evidence) -> dict[int, float]:
        return {decision.plan: self._evaluator.played(decision.plan, evidence)}

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        self._evaluator.note(evidence)
        return [(decision, self._evaluator.feedback(self._known(decision, evidence)))]

    def flush(self) -> DueFeedback:
        """Return nothing: pending values stay unknown."""
        self._waiting.clear()
        return []


class Prefix(Bandit):
    """Reveal every plan whose accepted count the played draft determines.

    Source: this project. If ``a`` tokens of a chain were accepted, length k of the same drafter and
        rule would have had min(a, k) accepted; if all n were, this is known for k <= n only.
        ``none`` emits one token; of trees only the played one is known.
    longer: also reveal lengths beyond the played one. They are known after a rejection only, so a
        policy that averages values underrates them; without them every mean is unbiased.
    Cost: one reward for each plan of the drafter.

    >>> plans = [Plan("none", 0), Plan("a", 1), Plan("a", 2), Plan("a", 4), Plan("b", 1)]
    >>> from draftwise.bandits.rewards import Length
    >>> evidence = Evidence(plans[2], num_drafted=2, num_accepted=2)
    >>> [(_, feedback)] = Prefix(plans, Length()).reveal(Decision(2, 1.0, 1), evidence)
    >>> feedback.values.tolist(), feedback.seen.tolist()
    ([0.0, 0.25, 0.5, 0.0, 0.0], [True, True, True, False, False])
    """

    def __init__(
        self, plans: Sequence[Plan], reward: Reward, switching: float = 0.0, longer: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(plans, reward, switching)
        self._longer = flag("longer", longer)

    def _known(self, decision: Decision, evidence: Evidence) -> dict[int, float]:
        return self._evaluator.prefixes(decision.plan, evidence, self._longer)


class Free(Prefix):
    """Reveal all that is known without extra forwards, each value as soon as it is determined.

    The played drafter's lengths are revealed at once, as by ``Prefix`` (also ``longer``); those of
    other drafters (retrieval, catch-up) along the verified text from the round's first token on,
    once it is scored for as many tokens as the drafter's longest plan has: later, in separate
    feedback, unless the round emitted these tokens.

    Source: this project; the delay is HedgeSpec's (section 3.3, appendix B.4): without it only bad
        values would be shown, as a short round leaves only the lengths of good drafters open.
    Differs: values that the text's end or an unscored gap leaves open are never revealed.
    State: alphas by drafter and position; pending rounds, with the drafters they wait for, over at
        most ``MAX_WAIT`` tokens of text. Cost: one reward for each plan that is scored.
    """

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        """Feedback of earlier rounds that is due, then that of this round."""
        self._history.note(evidence)
        self._evaluator.note(evidence)
        told = []
        for earlier in self._waiting:
            if known := self._due(earlier):
                told.append((earlier.decision, self._evaluator.feedback(known)))
        others = self._evaluator.drafters - {evidence.plan.drafter}
        start = evidence.emitted_start
        own = PendingFeedback(decision, start, evidence.num_emitted, names=others)
        known = self._due(own) | self._known(decision, evidence)
        self._waiting = deque(
            w for w in [*self._waiting, own] if w.names and w.start > start - MAX_WAIT
        )
        self._history.forget(self._waiting[0].start if self._waiting else start)
        return [*told, (decision, self._evaluator.feedback(known))]

    def _due(self, step: PendingFeedback) -> dict[int, float]:
        """The values of drafters that are scored far enough; these are removed from the step."""
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


class Panoramic:
    """Reveal every plan's value once the text is verified far enough past the decision.

    Source: HedgeSpec, section 3.3 (Figures 3 and 4) and Algorithm 1 (QFI-D): one queue, first in,
        first out. ``per_token`` is its token-level game, one loss vector for each verified token;
        ``delay=0`` its chunk-level game (appendix B.3), where K is cut to the tokens of the round;
        ``every``, ``warmup`` and ``hybrid`` are appendix B.5 (there 12 and 6; hybrid "a few").
    Update: a step is due when each drafter is scored on the ``delay`` positions from its first
        token on (default: the longest length), or only on its tokens if the reward does not look
        ahead.
    Differs: (1) by default one vector for each decision, at its first token; (2) an unscored
        drafter delays the queue by at most ``every`` rounds, then counts as unseen; (3) the plan
        ``none`` emits one token; (4) where alphas do not determine a value (``throughput``), the
        played plan's outcome does; (5) a vector has one scale: while the hybrid loss is acceptance,
        ``none`` has no value; (6) a tree is scored as its drafter's chain, by sum_v min(p, q), not
        by p of its candidates (Theorem 2): drafters with trees of one shape keep their order, all
        are underrated.
    State: alphas by drafter and position, from the oldest pending step on; the queue.
    Cost: one reward for each plan and step. Ranges: every 1 to 100,000 rounds; delay, warmup and
        hybrid 0 to 100,000.
    """

    panoramic = True

    def __init__(
        self, plans: Sequence[Plan], reward: Reward, every: int = 1,
        delay: int | None = None, per_token: bool = False, warmup: int = 0, hybrid: int = 0,
    ) -> None:  # fmt: skip
        self._every = whole("every", every, 1, MANY)
        optional(whole, "delay", delay, 0, MANY)
        self._warmup = whole("warmup", warmup, 0, MANY)
        self._hybrid = whole("hybrid", hybrid, 0, MANY)
        self._per_token = flag("per_token", per_token)
        self._own, self._first = (RewardEvaluator(plans, r) for r in (reward, Acceptance()))
        self._delay = self._own.max_length if delay is None else delay
        self._history = ScoreHistory(self._own.drafters)
        self._waiting: deque[PendingFeedback] = deque()
        self._text_ends: deque[int] = deque(maxlen=every + 1)  # text lengths after the last rounds
        self._num_rounds, self._num_told = 0, 0

    @property
    def every(self) -> int:
        return 1 if self._num_rounds < self._warmup else self._every

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        """Queue the round; return feedback that is due, oldest first."""
        self._history.note(evidence)
        self._num_rounds += 1
        start, num = evidence.emitted_start, evidence.num_emitted
        self._text_ends.append(start + num)
        width = 1 if self._per_token else num
        for i in range(0, num, width):
            own, more = None if i else evidence, (num - i) // width - 1
            self._waiting.append(PendingFeedback(decision, start + i, width, own, more))
        told: DueFeedback = []
        while self._waiting and self._is_ready(self._waiting[0]):
            told.append(self._tell(self._waiting.popleft()))
        self._forget()
        return told

    def flush(self) -> DueFeedback:
        """All pending feedback; values that the text's end leaves undetermined are not seen."""
        told = [self._tell(step) for step in self._waiting]
        self._waiting.clear()
        self._forget()
        return told

    def _forget(self) -> None:
        waits = self._waiting[0].start if self._waiting else max(self._text_ends, default=0)
        self._history.forget(waits)

    @property
    def _evaluator(self) -> RewardEvaluator:
        """The evaluator of the next step's reward; if hybrid, of acceptance at first."""
        return self._first if self._num_told < self._hybrid else self._own

    def _window(self, step: PendingFeedback) -> int:
        """Number of positions, from the step's first, that its values depend on."""
        is_far = self._delay > 0 and looks_ahead(self._evaluator.reward)
        return self._delay if is_far else step.width

    def _is_ready(self, step: PendingFeedback) -> bool:
        end = step.start + self._window(step)
        is_late = len(self._text_ends) > self._every and self._text_ends[0] >= end
        return is_late or all(known_to >= end for known_to in self._history.ends.values())

    def _tell(self, step: PendingFeedback) -> tuple[Decision, Feedback]:
        evaluator, window = self._evaluator, self._window(step)
        known = evaluator.nothing_drafted(window)
        for name in self._history.ends:
            alphas, ratios = self._history.run(name, step.start, window)
            known |= evaluator.scored(name, alphas, ratios, window)
        played = step.decision.plan
        if step.evidence is not None and math.isnan(known.get(played, math.nan)):
            known[played] = evaluator.played(played, step.evidence)
        self._num_told += 1
        return step.decision, evaluator.feedback(known, step.more)
