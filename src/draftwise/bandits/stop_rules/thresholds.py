"""Stop rules that compare a statistic of the drafter's q with a threshold."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from draftwise.checks import LARGE, number, probability
from draftwise.types import DraftStep


class ThresholdRule(ABC):
    """Compares one number of the last token with a threshold; at depth 0 the draft continues.

    The token itself stays in the draft, so the output distribution is unchanged. Cost: O(V). A
    threshold outside a rule's documented range raises ValueError.
    """

    needs_probs = True
    never_stops = waits_for_hidden = False
    needs_hidden = 0

    @abstractmethod
    def should_continue(self, step: DraftStep) -> bool:
        """Whether to draft one more token."""

    def learn(self, num_drafted: int, num_accepted: int) -> None:  # noqa: B027
        pass


class Fixed(ThresholdRule):
    """Never stop before the plan's length. Source: Leviathan et al. (2023)."""

    needs_probs, never_stops = False, True

    def should_continue(self, step: DraftStep) -> bool:
        return True


class MaxConfidence(ThresholdRule):
    """Stop when the largest q at the last drafted token is below a threshold in [0, 1].

    Source: TapOut, table 1 (Max-Confidence, threshold 0.8). Differs: none.

    >>> MaxConfidence(0.8).should_continue(DraftStep(depth=1, length=5, max_prob=0.7))
    False
    """

    def __init__(self, threshold: float = 0.8) -> None:
        self._threshold = probability("threshold", threshold)

    def should_continue(self, step: DraftStep) -> bool:
        return step.depth == 0 or step.max_prob >= self._threshold


class LogitMargin(ThresholdRule):
    """Stop when the two largest q at the last drafted token differ by less than a threshold.

    Source: TapOut, table 1 and appendix A.1 (LogitMargin, threshold 0.2): despite its name the
    margin is one of probabilities. Differs: none.
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = probability("threshold", threshold)

    def should_continue(self, step: DraftStep) -> bool:
        return step.depth == 0 or step.margin >= self._threshold


def root_entropy(nats: float) -> float:
    return math.sqrt(max(nats, 0.0))  # rounding errors below 0 count as 0, and nan stays nan


class Svip(ThresholdRule):
    """Stop when the root of the entropy of q at the last drafted token is above a threshold.

    Source: TapOut, table 1 and appendix A.1 (SVIP, of Zhang et al. 2025): sqrt(H) > 0.6; H in nats.
    Differs: none known; the paper names no unit for H, and 0.6 is a threshold for nats.
    """

    def __init__(self, threshold: float = 0.6) -> None:
        self._threshold = number("threshold", threshold, 0, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        return step.depth == 0 or root_entropy(step.entropy) <= self._threshold


class SvipDifference(ThresholdRule):
    """Stop when the root of the entropy of q rose by more than a threshold over the token before.

    Source: TapOut, table 1 and appendix A.1 (SVIPDifference, threshold 0.2), H in nats.
    Differs: the draft continues after its first token, which has no predecessor in the draft.
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = number("threshold", threshold, -LARGE, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        rise = root_entropy(step.entropy) - root_entropy(step.entropy_before)
        return not rise > self._threshold  # nan, for the first token, is not a rise


class AdaEdl(ThresholdRule):
    """Stop when ``1 - sqrt(gamma H)`` at the last drafted token is below an adaptive lambda.

    Source: TapOut, table 1 and appendix A.1 (AdaEDL, of Agrawal et al. 2024). H in nats.
    Update: after each draft, with r its acceptance rate (accepted / drafted): lambda = beta2 *
        lambda + (1 - beta2) * (lambda + epsilon * sign(alpha - r)), so lambda rises (drafts get
        shorter) while fewer than alpha of the tokens are accepted.
    Differs: (1) the paper prints no values: gamma 0.2, alpha 0.9, beta2 0.9, epsilon 0.01 and the
        initial lambda, ``threshold`` 0.7, are this project's; 0.7 stops at sqrt(H) = 0.67, close to
        SVIP's 0.6; (2) its running ``accept_rate`` (with beta1) is omitted, as the printed update
        of lambda does not use it; (3) as printed, lambda moves by (1 - beta2) epsilon a draft,
        0.001 here, and restarts in each request: by at most 0.05 over an answer of 50 drafts, so
        the rule is nearly constant unless epsilon is larger.
    State: lambda, as ``threshold``. Ranges: alpha and beta2 in [0, 1], gamma and epsilon >= 0.
    """

    def __init__(
        self, threshold: float = 0.7, gamma: float = 0.2, alpha: float = 0.9, beta2: float = 0.9,
        epsilon: float = 0.01,
    ) -> None:  # fmt: skip
        self._root_gamma = math.sqrt(number("gamma", gamma, 0, LARGE))
        self._target_rate, self._beta2 = probability("alpha", alpha), probability("beta2", beta2)
        self._epsilon = number("epsilon", epsilon, 0, LARGE)
        self.threshold = number("threshold", threshold, -LARGE, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        bound = 1.0 - self._root_gamma * root_entropy(step.entropy)
        return step.depth == 0 or bound >= self.threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        miss = self._target_rate - num_accepted / num_drafted
        sign = (miss > 0) - (miss < 0)
        moved = self.threshold + self._epsilon * sign
        self.threshold = self._beta2 * self.threshold + (1.0 - self._beta2) * moved
