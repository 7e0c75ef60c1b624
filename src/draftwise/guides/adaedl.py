"""Stop where a bound on the acceptance probability falls below a threshold learned online."""

from __future__ import annotations

import math

from draftwise.checks import LARGE, number, probability
from draftwise.guides.svip import root_entropy
from draftwise.types import DraftStep


class AdaEdl:
    """Stop when ``1 - sqrt(gamma H)`` at the token kept last is below lambda, which moves.

    Source: TapOut, table 1 and appendix A.1 (AdaEDL, of Agrawal et al. 2024). H in nats.
    Update: after each draft, with r its acceptance rate (accepted / drafted):
        lambda = beta2 * lambda + (1 - beta2) * (lambda + epsilon * sign(alpha - r)),
        so lambda rises (drafts get shorter) while fewer than alpha of the tokens are accepted.
    Differs: (1) the paper prints no values: gamma 0.2, alpha 0.9, beta2 0.9, epsilon 0.01 and the
        first lambda, ``threshold`` 0.7, are this project's, the last so that it starts about where
        SVIP's 0.6 stops (sqrt(H) = 0.67); (2) its running ``accept_rate`` (with beta1) is left
        out, as the printed update of lambda does not read it; (3) as printed, lambda moves by
        (1 - beta2) epsilon a draft, .001 here, and it begins anew in each request: by .05 at most
        over an answer of 50 drafts, so the rule is nearly constant unless epsilon is larger.
    State: lambda, as ``threshold``: float, unitless. Cost: O(V) a token.
    Errors: ValueError if alpha or beta2 is not in [0, 1], or gamma or epsilon is below 0.

    >>> rule = AdaEdl(0.6, gamma=0.25, epsilon=0.5)
    >>> step = DraftStep(depth=1, length=5, entropy=0.49)  # 1 - 0.5 * 0.7 = 0.65
    >>> rule.goes_on(step)
    True
    >>> for _ in range(2):
    ...     rule.learn(num_drafted=4, num_accepted=1)
    >>> rule.goes_on(step), round(rule.threshold, 3)
    (False, 0.7)
    """

    needs_probs = True
    is_pure = True
    always_goes_on, waits_for_hidden, needs_hidden = False, False, 0

    def __init__(
        self, threshold: float = 0.7, gamma: float = 0.2, alpha: float = 0.9, beta2: float = 0.9,
        epsilon: float = 0.01,
    ) -> None:  # fmt: skip
        self._root_gamma = math.sqrt(number("gamma", gamma, 0, LARGE))
        self._target_rate, self._beta2 = probability("alpha", alpha), probability("beta2", beta2)
        self._epsilon = number("epsilon", epsilon, 0, LARGE)
        self.threshold = number("threshold", threshold, -LARGE, LARGE)

    def goes_on(self, step: DraftStep) -> bool:
        """Whether the bound at the token kept last reached lambda; always at depth 0."""
        bound = 1.0 - self._root_gamma * root_entropy(step.entropy)
        return step.depth == 0 or bound >= self.threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Move lambda by one step towards the wanted acceptance rate."""
        miss = self._target_rate - num_accepted / num_drafted
        sign = (miss > 0) - (miss < 0)
        moved = self.threshold + self._epsilon * sign
        self.threshold = self._beta2 * self.threshold + (1.0 - self._beta2) * moved
