"""Delayed feedback on every drafter, from its alphas along the verified text."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwise.checks import MANY, flag, optional, whole
from draftwise.feedback import DueFeedback
from draftwise.feedback.values import RewardEvaluator, ScoreHistory
from draftwise.protocols import Reward, looks_ahead
from draftwise.rewards.tokens import Acceptance
from draftwise.types import Decision, Evidence, Feedback, Plan


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A step that waits for its values: ``width`` tokens of text from ``start`` on.

    more: number of further steps of the same decision.
    """

    decision: Decision
    evidence: Evidence | None
    start: int
    width: int
    more: int = 0


class Panoramic:
    """Reveal every plan's value once the text is verified far enough past the decision.

    Source: HedgeSpec, section 3.3 (Figures 3 and 4) and Algorithm 1 (QFI-D): one queue, first in,
        first out. ``per_token`` is its token-level game, one loss vector for each verified token;
        ``delay=0`` its chunk-level game (appendix B.3), where K is cut to the tokens of the round;
        ``every``, ``warmup`` and ``hybrid`` are appendix B.5 (there 12 and 6; hybrid "a few").
    A step is due when each drafter is scored on the ``delay`` positions from the
        step's first token on (default: the longest length), or, for a reward that does not look
        ahead, on the step's own tokens.
    Differs: (1) by default one vector for each decision, at its first token; (2) an unscored
        drafter delays the queue by at most ``every`` rounds, then counts as unseen; (3) the plan
        ``none`` emits one token; (4) where alphas do not determine a value (``throughput``), the
        played plan's outcome does; (5) one vector has one scale: while the hybrid loss is
        acceptance, ``none``, which accepts nothing, is not seen; (6) a tree is scored as its
        drafter's chain, by sum_v min(p, q), not by p of the candidates that it would hold (Theorem
        2): drafters with trees of one shape keep their order, and all are underrated.
    State: alphas by drafter and position, from the oldest waiting step on; the queue.
    Cost: one reward for each plan and step. Ranges: every 1 to 100,000 rounds; delay, warmup and
        hybrid 0 to 100,000.
    """

    panoramic: ClassVar[bool] = True
    compares_rules: ClassVar[bool] = False

    def __init__(
        self, plans: Sequence[Plan], reward: Reward | None, every: int = 1,
        delay: int | None = None, per_token: bool = False, warmup: int = 0, hybrid: int = 0,
    ) -> None:  # fmt: skip
        whole("every", every, 1, MANY), optional(whole, "delay", delay, 0, MANY)
        whole("warmup", warmup, 0, MANY), whole("hybrid", hybrid, 0, MANY)
        flag("per_token", per_token)
        self._evaluator = RewardEvaluator(plans, reward)
        self._every, self._warmup, self._hybrid = every, warmup, hybrid
        self._delay = self._evaluator.max_length if delay is None else delay
        self._per_token = per_token
        self._history = ScoreHistory(self._evaluator.drafters)
        self._waiting: deque[QueuedStep] = deque()
        self._text_ends: deque[int] = deque(maxlen=every + 1)  # of the last rounds
        self._num_rounds, self._num_told = 0, 0

    @property
    def every(self) -> int:
        return 1 if self._num_rounds < self._warmup else self._every

    def reveal(self, decision: Decision, evidence: Evidence) -> DueFeedback:
        """Queue the round; return feedback that is due, oldest first."""
        self._history.note(evidence)
        if decision.round == 0:
            return [(decision, self._evaluator.feedback({}, evidence))]
        self._num_rounds += 1
        self._text_ends.append(evidence.emitted_start + evidence.num_emitted)
        self._waiting.extend(self._steps(decision, evidence))
        told: DueFeedback = []
        while self._waiting and self._is_ready(self._waiting[0]):
            told.append(self._tell(self._waiting.popleft()))
        self._forget()
        return told

    def flush(self) -> DueFeedback:
        """All pending feedback; values that the text's end leaves undetermined are unseen."""
        told = [self._tell(step) for step in self._waiting]
        self._waiting.clear()
        self._forget()
        return told

    def _steps(self, decision: Decision, evidence: Evidence) -> list[QueuedStep]:
        start, num = evidence.emitted_start, evidence.num_emitted
        if not self._per_token:
            return [QueuedStep(decision, evidence, start, num)]
        return [
            QueuedStep(decision, None if i else evidence, start + i, 1, num - 1 - i)
            for i in range(num)
        ]

    def _forget(self) -> None:
        """Drop the positions before the oldest pending step."""
        waits = self._waiting[0].start if self._waiting else max(self._text_ends, default=0)
        self._history.forget(waits)

    def _reward(self) -> Reward | None:
        """The reward of the next step: acceptance first, if hybrid."""
        return Acceptance() if self._num_told < self._hybrid else self._evaluator.reward

    def _window(self, step: QueuedStep) -> int:
        """Number of positions, from the step's first, that its values depend on."""
        return self._delay if self._delay > 0 and looks_ahead(self._reward()) else step.width

    def _is_ready(self, step: QueuedStep) -> bool:
        end = step.start + self._window(step)
        if all(known_to >= end for known_to in self._history.ends.values()):
            return True
        return len(self._text_ends) > self._every and self._text_ends[0] >= end

    def _tell(self, step: QueuedStep) -> tuple[Decision, Feedback]:
        reward, window = self._reward(), self._window(step)
        known = self._evaluator.nothing_drafted(window, reward)
        for name in self._history.ends:
            alphas, ratios = self._history.run(name, step.start, window)
            known |= self._evaluator.scored(name, alphas, ratios, window, reward)
        played = step.decision.plan
        if step.evidence is not None and math.isnan(known.get(played, math.nan)):
            known[played] = self._evaluator.played(played, step.evidence, reward)
        self._num_told += 1
        return step.decision, self._evaluator.feedback(known, step.evidence, step.more)
