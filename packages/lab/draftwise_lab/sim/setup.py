"""From a setting and what a user chose to a match."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise_lab.sim.contestants import make_contestant, make_plans, parse_lengths
from draftwise_lab.sim.presets import Setting
from draftwise_lab.sim.run import Match, every_plan


def make_match(
    chosen: Setting, policies: Sequence[str] | None, *, reward: str | None = None,
    feedback: str | None = None, tokens: int | None = None, lengths: str | None = None,
    num_drafters: int | None = None, with_trails: bool = False,
) -> Match:  # fmt: skip
    """Everything that a run needs, checked, from labels and options as a user types them.

    What is None is left to the setting, or to the policy's own paper. Raises DraftwiseError.
    """
    environment = chosen.make(num_drafters)
    own = parse_lengths(lengths) if lengths else chosen.lengths
    labels = list(dict.fromkeys(policies or chosen.panel))
    contestants = tuple(
        make_contestant(
            label, environment.drafters, own, chosen.rules, reward=reward, feedback=feedback
        )
        for label in labels
    )
    plans = every_plan(contestants, make_plans(environment.drafters, own, chosen.rules))
    return Match(environment, contestants, plans, tokens or chosen.tokens, with_trails)
