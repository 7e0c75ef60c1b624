"""What an outcome is worth, in [0, 1]: the only room that knows units.

A reward is any callable from ``Outcome`` to a float. ``nan`` means that the outcome does not tell
(too few alphas, no clock, a plan that did not play), and a feedback then counts the plan as not
seen. Its attribute ``looks_ahead`` says whether it needs the alphas of as many positions as the
plan is long (so that panoramic feedback waits for text to come), or only those of the round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.rewards.tokens import tokens_by_products as tokens_by_products
    from draftwise.rewards.tokens import tokens_by_ratios as tokens_by_ratios
    from draftwise.rewards.tokens import tokens_by_verdict as tokens_by_verdict

__getattr__, __dir__ = exports(__name__)
NAN = float("nan")
"""What a reward gives for an outcome that does not tell."""
