"""Rules that stop a draft where a number of the drafter's crosses a threshold."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from draftwise.checks import LARGE, number, probability
from draftwise.types import DraftStep


class Looking(ABC):
    """A rule of one look; a leaf says what it looks for."""

    needs_probs = True
    is_pure = True
    never_stops, waits_for_hidden, needs_hidden = False, False, 0

    @abstractmethod
    def should_continue(self, step: DraftStep) -> bool:
        """Whether one more token is drafted."""

    def learn(self, num_drafted: int, num_accepted: int) -> None:  # noqa: B027
        """Nothing to learn."""


class Fixed(Looking):
    """Never stop before the plan's length.

    Source: Leviathan et al. (2023). State: none. Cost: O(1).

    >>> Fixed().should_continue(DraftStep(depth=3, length=5))
    True
    """

    needs_probs, never_stops = False, True

    def should_continue(self, step: DraftStep) -> bool:
        return True


class MaxConfidence(Looking):
    """Stop when the largest q at the last drafted token is below a threshold.

    Source: TapOut, table 1 (Max-Confidence, threshold 0.8). Update: none. Differs: none; the token
    itself stays in the draft, so the output's law is untouched. State: none. Cost: O(V) a token.
    Errors: ValueError if the threshold is not in [0, 1].

    >>> MaxConfidence(0.8).should_continue(DraftStep(depth=1, length=5, max_prob=0.7))
    False
    """

    def __init__(self, threshold: float = 0.8) -> None:
        self._threshold = probability("threshold", threshold)

    def should_continue(self, step: DraftStep) -> bool:
        """Whether the largest q reaches the threshold; always True at depth 0."""
        return step.depth == 0 or step.max_prob >= self._threshold


class LogitMargin(Looking):
    """Stop when the two largest q at the last drafted token differ by less than a threshold.

    Source: TapOut, table 1 and appendix A.1 (LogitMargin, threshold 0.2): despite its name the
    margin is one of probabilities. Update: none. Differs: none. State: none. Cost: O(V) a token.
    Errors: ValueError if the threshold is not in [0, 1].

    >>> LogitMargin(0.2).should_continue(DraftStep(depth=1, length=5, margin=0.1))
    False
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = probability("threshold", threshold)

    def should_continue(self, step: DraftStep) -> bool:
        """Whether the likeliest token stood out; always at depth 0."""
        return step.depth == 0 or step.margin >= self._threshold


def root_entropy(nats: float) -> float:
    """The square root of an entropy; rounding errors below 0 count as 0, and nan stays nan.

    >>> root_entropy(0.25), root_entropy(-1e-9)
    (0.5, 0.0)
    """
    return math.sqrt(max(nats, 0.0))


class Svip(Looking):
    """Stop when the root of the entropy of q at the last drafted token is above a threshold.

    Source: TapOut, table 1 and appendix A.1 (SVIP, of Zhang et al. 2025): sqrt(H) > 0.6; H in nats.
    Update: none. Differs: none known; the paper names no unit for H, and 0.6 is a threshold for
    nats. State: none. Cost: O(V) a token. Errors: ValueError if the threshold is below 0.

    >>> Svip(0.6).should_continue(DraftStep(depth=1, length=5, entropy=0.35))
    True
    >>> Svip(0.6).should_continue(DraftStep(depth=1, length=5, entropy=0.37))
    False
    """

    def __init__(self, threshold: float = 0.6) -> None:
        self._threshold = number("threshold", threshold, 0, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        """Whether the root of the entropy is within the threshold; always True at depth 0."""
        return step.depth == 0 or root_entropy(step.entropy) <= self._threshold


class SvipDifference(Looking):
    """Stop when the root of the entropy of q rose by more than a threshold over the token before.

    Source: TapOut, table 1 and appendix A.1 (SVIPDifference, threshold 0.2), H in nats.
    Update: none. Differs: the first token of a draft has none before it (the text's last token was
    the target's), so the rule goes on after it. State: none. Cost: O(V) a token. Errors:
    ValueError if the threshold is not a number.

    >>> rule = SvipDifference(0.2)
    >>> rule.should_continue(DraftStep(depth=2, length=5, entropy=0.25, entropy_before=0.16))
    True
    >>> rule.should_continue(DraftStep(depth=2, length=5, entropy=0.25, entropy_before=0.04))
    False
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = number("threshold", threshold, -LARGE, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        """Whether the entropy did not jump; always at depths 0 and 1."""
        rise = root_entropy(step.entropy) - root_entropy(step.entropy_before)
        return not rise > self._threshold  # nan, where no token is before the last, is no rise


class AdaEdl(Looking):
    """Stop when ``1 - sqrt(gamma H)`` at the last drafted token is below an adaptive lambda.

    Source: TapOut, table 1 and appendix A.1 (AdaEDL, of Agrawal et al. 2024). H in nats.
    Update: after each draft, with r its acceptance rate (accepted / drafted):
        lambda = beta2 * lambda + (1 - beta2) * (lambda + epsilon * sign(alpha - r)),
        so lambda rises (drafts get shorter) while fewer than alpha of the tokens are accepted.
    Differs: (1) the paper prints no values: gamma 0.2, alpha 0.9, beta2 0.9, epsilon 0.01 and the
        first lambda, ``threshold`` 0.7, are this project's, the last so that it starts about where
        SVIP's 0.6 stops (sqrt(H) = 0.67); (2) its running ``accept_rate`` (with beta1) is left
        out, as the printed update of lambda does not read it; (3) as printed, lambda moves by
        (1 - beta2) epsilon a draft, 0.001 here, and it begins anew in each request: by 0.05 at most
        over an answer of 50 drafts, so the rule is nearly constant unless epsilon is larger.
    State: lambda, as ``threshold``: float, unitless. Cost: O(V) a token.
    Errors: ValueError if alpha or beta2 is not in [0, 1], or gamma or epsilon is below 0.

    >>> rule = AdaEdl(0.6, gamma=0.25, epsilon=0.5)
    >>> step = DraftStep(depth=1, length=5, entropy=0.49)  # 1 - 0.5 * 0.7 = 0.65
    >>> rule.should_continue(step)
    True
    >>> for _ in range(2):
    ...     rule.learn(num_drafted=4, num_accepted=1)
    >>> rule.should_continue(step), round(rule.threshold, 3)
    (False, 0.7)
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
        """Whether the bound reaches lambda; always True at depth 0."""
        bound = 1.0 - self._root_gamma * root_entropy(step.entropy)
        return step.depth == 0 or bound >= self.threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Move lambda by one step towards the wanted acceptance rate."""
        miss = self._target_rate - num_accepted / num_drafted
        sign = (miss > 0) - (miss < 0)
        moved = self.threshold + self._epsilon * sign
        self.threshold = self._beta2 * self.threshold + (1.0 - self._beta2) * moved
