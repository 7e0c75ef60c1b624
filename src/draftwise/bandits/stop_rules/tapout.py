"""Several rules at once: the first that stops (``any-of``), or a bandit by position (TapOut)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from draftwise.protocols import Policy, StopRule
from draftwise.types import Decision, DraftStep, DraftwiseError, Feedback

TABLE_1 = "max-confidence+svip+adaedl+svip-difference+logit-margin"  # with TapOut's thresholds


def split_rules(text: str) -> list[str]:
    """Split ``"a:x=1;y=2+b"`` into the specs of its rules; ValueError for an empty rule.

    >>> split_rules("adaedl:gamma=0.3;alpha=0.8+svip:0.5")
    ['adaedl:gamma=0.3,alpha=0.8', 'svip:0.5']
    """
    specs = [part.strip().replace(";", ",") for part in text.split("+")]
    if not all(specs):
        raise ValueError(f"rules is {text!r}: write rules joined by +, such as svip+max-confidence")
    return specs


class Several:
    """Rules that all see every step and learn from every draft; state and cost are their sum."""

    never_stops = False

    def __init__(self, rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self.needs_probs = any(rule.needs_probs for rule in rules)
        self.waits_for_hidden = any(rule.waits_for_hidden for rule in rules)

    @property
    def needs_hidden(self) -> int:
        """The size of the hidden states that rules need, or 0; DraftwiseError if sizes differ."""
        sizes = sorted({rule.needs_hidden for rule in self._rules} - {0})
        if len(sizes) > 1:
            raise DraftwiseError(
                f"rules read hidden states of sizes {sizes}: one drafter has one size"
            )
        return sizes[0] if sizes else 0

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        for rule in self._rules:
            rule.learn(num_drafted, num_accepted)


class AnyOf(Several):
    """Stop as soon as any of several rules stops.

    Source: this project. Written ``any-of:rules=svip:0.5+max-confidence``: rules are joined by
    ``+``; inside a rule, ``;`` replaces the comma between options (``adaedl:gamma=0.3;alpha=1``).
    Errors: ValueError for an empty rule, DraftwiseError for an unknown one.
    """

    def __init__(self, make_rule: Callable[[str], StopRule], rules: str = TABLE_1) -> None:
        super().__init__([make_rule(spec) for spec in split_rules(rules)])

    def should_continue(self, step: DraftStep) -> bool:
        # a list: all rules are evaluated, since some keep state by draft
        return all([rule.should_continue(step) for rule in self._rules])


class TapOutToken(Several):
    """After each token a bandit for that position chooses the rule that decides whether to stop.

    Source: TapOut, sections 3.1 to 3.3, token level: ``bandit=ucb1:beta=1`` (UCB1) or
        ``bandit=thompson-bernoulli`` (Beta-Bernoulli Thompson sampling); the rules of table 1.
    Update: after the round, the bandit of position i learns, for the rule that it chose there, 1 if
        the token at position i was accepted and 0 if not.
    Differs: (1) the reward is taken literally, that of the token AT the position, which is drawn
        before the rule is chosen: it separates rules only through noise and through which drafts
        reach the position, so expect a nearly uniform mix of rules (the paper also finds the token
        level weaker, section 4.2.1); tokens after the first rejection count as not accepted; (2)
        every rule learns from every draft, so AdaEDL's lambda from those that others ended, too;
        (3) the last position of the longest length has no bandit: nothing is left to decide.
    State: a policy for each position reached so far; the decisions of the current draft.
    Errors: as ``any-of`` for rules; DraftwiseError for a bandit that is not a policy.
    """

    def __init__(
        self, make_rule: Callable[[str], StopRule], make_bandit: Callable[[str, int], Policy],
        bandit: str = "ucb1:beta=1", rules: str = TABLE_1,
    ) -> None:  # fmt: skip
        super().__init__([make_rule(spec) for spec in split_rules(rules)])
        self._new_bandit = partial(make_bandit, bandit.replace(";", ","), len(self._rules))
        self._bandits = [self._new_bandit()]
        self._made: list[Decision] = []

    def should_continue(self, step: DraftStep) -> bool:
        answers = [rule.should_continue(step) for rule in self._rules]
        if step.depth == 0:
            self._made = []
            return True
        if len(self._bandits) < step.depth:
            self._bandits.append(self._new_bandit())
        self._made.append(self._bandits[step.depth - 1].choose())
        return answers[self._made[-1].plan]

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        for position, decision in enumerate(self._made):
            values, seen = np.zeros(len(self._rules)), np.zeros(len(self._rules), dtype=np.bool_)
            values[decision.plan], seen[decision.plan] = float(position < num_accepted), True
            self._bandits[position].learn(decision, Feedback(values, seen))
        self._made = []
        super().learn(num_drafted, num_accepted)
