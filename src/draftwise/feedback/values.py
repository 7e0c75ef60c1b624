"""Values of plans under one reward, the cost of changing the drafter, and scores by position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np

from draftwise.checks import LARGE, number
from draftwise.protocols import Reward
from draftwise.types import NONE, Evidence, Feedback, Floats, Outcome, Plan, Scores


class SwitchingCost:
    """Charge a drafter for the tokens it missed since it last played.

    Source: MetaSD, appendix H.1: lambda (l(t) - l(tau_i(t))) 1[a_{t-1} != a_t], with l(t) the
        tokens processed by round t and tau_i(t) the last round in which drafter i played.
    Differs: (1) lambda is in units of value, not of rounds; (2) before its first round a drafter
        missed what was emitted so far, not the prompt; (3) retrieval keeps no cache and ``none``
        drafts nothing: both are free.
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
        """The cost of this round's switch, in units of value; 0 for none."""
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
    """Values of plans under one reward, shared by all kinds of feedback.

    Without a reward nothing is ever seen, and the evidence alone is delivered (``goodput`` reads
    no values, so computing them can be spared).
    """

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, switching: SwitchingCost | None = None
    ) -> None:
        self._switching, self._charge = switching, 0.0
        self.plans = list(plans)
        self.reward = reward
        self.max_length = max(plan.length for plan in plans)
        self.drafters = {plan.drafter for plan in plans} - {NONE}
        self._of: dict[str, list[int]] = {}
        for index, plan in enumerate(plans):
            self._of.setdefault(plan.drafter, []).append(index)

    def longest_of(self, drafter: str) -> int:
        return max(self.plans[index].length for index in self._of[drafter])

    def note(self, evidence: Evidence) -> None:
        """Begin a round: the tokens its drafter missed are charged to all its plans."""
        self._charge = self._switching.charge(evidence) if self._switching is not None else 0.0

    def feedback(
        self, known: dict[int, float], evidence: Evidence | None, more: int = 0
    ) -> Feedback:
        """The values that are numbers, as [K] arrays."""
        values, seen = np.zeros(len(self.plans)), np.zeros(len(self.plans), dtype=np.bool_)
        for index, value in known.items():
            if not math.isnan(value):
                values[index], seen[index] = value, True
        return Feedback(values, seen, evidence, more)

    def played(self, index: int, evidence: Evidence, reward: Reward | None = None) -> float:
        """The played plan's value; ``reward`` as in ``scored``."""
        return self._value(index, evidence, evidence.num_drafted, evidence.seconds, reward)

    def prefixes(
        self, index: int, evidence: Evidence, longer: bool, rules: bool = False
    ) -> dict[int, float]:
        """Values that the played draft determines, by plan.

        longer: of longer plans, too. rules: of other rules, too.
        """
        if self.reward is None:
            return {}
        known = self.nothing_drafted()
        for other in self._of.get(evidence.plan.drafter, []):
            num_drafted = drafted_by(self.plans[other], evidence)
            plan, played = self.plans[other], evidence.plan
            is_shown = rules if plan.rule != played.rule else longer or plan.length <= played.length
            if num_drafted is not None and is_shown:
                known[other] = self._value(other, evidence, num_drafted)
        known[index] = self.played(index, evidence)
        return known

    def nothing_drafted(
        self, most: int | None = None, reward: Reward | None = None
    ) -> dict[int, float]:
        """The value of the plan ``none``: no draft, one token; the rest as in ``scored``."""
        rest = self._longest(most), _EMPTY, _EMPTY, _EMPTY, 0, 0
        return {
            index: self._judge(Outcome(self.plans[index], *rest), reward or self.reward)
            for index in self._of.get(NONE, [])
        }

    def scored(
        self, drafter: str, alphas: Floats, ratios: Floats, most: int | None = None,
        reward: Reward | None = None,
    ) -> dict[int, float]:  # fmt: skip
        """Values of a drafter's plans from its alphas along the verified text.

        most: cut every length to this many tokens (a game by chunks), the longest one included.
        reward: None = the evaluator's own.
        """
        values: dict[int, float] = {}
        judge = reward or self.reward
        if judge is None:
            return values
        for index in self._of.get(drafter, []):
            plan = self.plans[index] if most is None else cut(self.plans[index], most)
            outcome = Outcome(plan, self._longest(most), alphas, ratios, alphas)
            values[index] = self._judge(outcome, judge)
        return values

    def _longest(self, most: int | None) -> int:
        return self.max_length if most is None else min(self.max_length, most)

    def _value(
        self, index: int, evidence: Evidence, num_drafted: int, seconds: float = 0.0,
        reward: Reward | None = None,
    ) -> float:  # fmt: skip
        """The value of a plan whose accepted count is known from the played draft."""
        scores = evidence.scores.get(evidence.plan.drafter)
        alphas, ratios = tail(scores, evidence.emitted_start)
        outcome = Outcome(
            self.plans[index], self.max_length, alphas, ratios, evidence.drafted_alphas,
            num_drafted, min(evidence.num_accepted, num_drafted), seconds,
        )  # fmt: skip
        return max(self._judge(outcome, reward or self.reward) - self._charge, 0.0)

    def _judge(self, outcome: Outcome, reward: Reward | None) -> float:
        """The reward's value, rounding errors at 0 and 1 removed; nan without a reward."""
        value = math.nan if reward is None else reward(outcome)
        return min(max(value, 0.0), 1.0) if -_ROUNDING <= value <= 1.0 + _ROUNDING else value


def drafted_by(plan: Plan, evidence: Evidence) -> int | None:
    """Number of tokens that a plan of the played drafter would have drafted; None = unknown.

    A rule that would have stopped within the draft is known exactly, by ``evidence.stops``.

    >>> evidence = Evidence(Plan("a", 4), num_drafted=4, num_accepted=1)
    >>> drafted_by(Plan("a", 2), evidence), drafted_by(Plan("a", 8), evidence)
    (2, 8)
    >>> evidence = Evidence(Plan("a", 4), num_drafted=4, num_accepted=1, stops={"svip": 3})
    >>> drafted_by(Plan("a", 8, "svip"), evidence), drafted_by(Plan("a", 8, "adaedl"), evidence)
    (3, None)
    """
    drafted, is_full = evidence.num_drafted, evidence.num_accepted == evidence.num_drafted
    if plan.tree is not None or evidence.plan.tree is not None:
        return None
    if plan.rule != evidence.plan.rule:
        stop = evidence.stops.get(plan.rule)
        return None if stop is None else min(stop, plan.length)
    if plan.length <= drafted:
        return plan.length
    if is_full:
        return None
    if drafted < evidence.plan.length:
        return drafted  # the drafter ended the draft; a longer plan would not change that
    return plan.length if plan.rule == "fixed" else None


def cut(plan: Plan, most: int) -> Plan:
    return plan if plan.length <= most else Plan(plan.drafter, most, plan.rule)


def tail(scores: Scores | None, position: int) -> tuple[Floats, Floats]:
    """alphas and ratios from a position of the text on; empty if the scores start after it."""
    if scores is None or position < scores.start:
        return _EMPTY, _EMPTY
    return scores.alphas[position - scores.start :], scores.ratios[position - scores.start :]


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
        """Store the new alphas by position."""
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
        found = [pairs[position] for position in known]
        columns = np.array(found, dtype=np.float64).reshape(len(found), 2)
        return columns[:, 0], columns[:, 1]

    def forget(self, low: int) -> None:
        """Drop the positions before ``low``."""
        for known in self._pairs.values():
            for position in range(self._low, low):
                known.pop(position, None)
        self._low = max(self._low, low)
