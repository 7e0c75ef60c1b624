"""Several rules at once: the draft ends as soon as one of them wants it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftwise.protocols import Guide
from draftwise.types import DraftStep, DraftwiseError

TABLE_1 = "max-confidence+svip+adaedl+svip-difference+logit-margin"
"""The five rules of TapOut's table 1, each with the paper's threshold."""


def split_rules(text: str) -> list[str]:
    """``"a:x=1;y=2+b"`` to the specs of its rules; ValueError if there is none.

    >>> split_rules("adaedl:gamma=0.3;alpha=0.8+svip:0.5")
    ['adaedl:gamma=0.3,alpha=0.8', 'svip:0.5']
    """
    specs = [part.strip().replace(";", ",") for part in text.split("+")]
    if not all(specs):
        raise ValueError(f"rules is {text!r}: write rules joined by +, such as svip+max-confidence")
    return specs


def hidden_size(rules: Sequence[Guide]) -> int:
    """The size of the hidden states that some of the rules read; 0 where none does.

    Raises DraftwiseError where they read states of different sizes.
    """
    sizes = sorted({rule.needs_hidden for rule in rules} - {0})
    if len(sizes) > 1:
        raise DraftwiseError(f"rules read hidden states of sizes {sizes}: one drafter has one size")
    return sizes[0] if sizes else 0


def waits_for_hidden(rules: Sequence[Guide]) -> bool:
    """Whether some rule judges the token kept last by its hidden state."""
    return any(rule.waits_for_hidden for rule in rules)


class AnyOf:
    """Stop as soon as any of several rules stops.

    Source: this project's own. Written ``any-of:rules=svip:0.5+max-confidence``: rules are joined
    by ``+``; inside one, ``;`` stands for the comma between options (``adaedl:gamma=0.3;alpha=1``).
    Update: each rule's own; all of them see every step and hear of every draft. Differs: none.
    State: the rules'. Cost: the sum of theirs. Errors: ValueError for an empty rule, DraftwiseError
    for an unknown one.

    >>> from draftwise.registry import make_guide
    >>> rule = make_guide("any-of:rules=svip:0.5+max-confidence:0.6")
    >>> rule.goes_on(DraftStep(depth=1, length=5, max_prob=0.7, entropy=0.3))
    False
    """

    always_goes_on = False

    def __init__(self, make_rule: Callable[[str], Guide], rules: str = TABLE_1) -> None:
        self._rules = [make_rule(spec) for spec in split_rules(rules)]
        self.needs_probs = any(rule.needs_probs for rule in self._rules)
        self.is_pure = all(rule.is_pure for rule in self._rules)
        self.waits_for_hidden = waits_for_hidden(self._rules)

    @property
    def needs_hidden(self) -> int:
        """The size of the hidden states that its rules read, 0 = none."""
        return hidden_size(self._rules)

    def goes_on(self, step: DraftStep) -> bool:
        """Whether all rules go on; each is asked, as some remember what they said."""
        return all([rule.goes_on(step) for rule in self._rules])

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Tell every rule how the common draft ended."""
        for rule in self._rules:
            rule.learn(num_drafted, num_accepted)
