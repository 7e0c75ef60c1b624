"""Rewards: the value of an outcome, in [0, 1].

A reward is any callable from ``Outcome`` to a float. ``nan`` means that the value is unknown (too
few alphas, no clock, a plan that did not play); feedback then counts the plan as not seen. A reward
needs the alphas of as many positions as the plan is long, for which panoramic feedback waits,
unless its attribute ``looks_ahead`` is false: then those of the round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.rewards.tokens import tokens_by_products, tokens_by_ratios, tokens_by_verdict

__getattr__, __dir__ = exports(__name__)
NAN = float("nan")
"""The reward of an outcome that does not determine it."""
