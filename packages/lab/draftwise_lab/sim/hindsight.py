"""Fixed plans in hindsight: what every plan would have taken on a text, and which was the best."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.protocols import StopRule
from draftwise.types import NONE, Floats, Ints, Plan
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.text import Text


@dataclass(frozen=True, slots=True)
class Totals:
    """[K] rounds and seconds of every plan, played alone from the text's start to its end.

    tokens: of the text; plain_s: seconds of decoding it plainly.
    """

    rounds: Floats
    seconds: Floats
    tokens: int
    plain_s: float


def fixed_path(
    text: Text, plan: Plan, guides: Mapping[str, StopRule]
) -> tuple[list[int], list[int]]:
    """Where each round of a fixed plan ends (in tokens), and how many tokens it drafted."""
    ends: list[int] = []
    drafted: list[int] = []
    position, guide = 0, guides.get(plan.rule)
    track = None if plan.drafter == NONE else text.tracks[plan.drafter]
    while position < text.length:
        num = accepted = 0
        if track is not None:
            most = min(plan.length, text.limit - position - 1)
            num = track.num_drafted(position, most, plan.length, guide)
            accepted = track.num_accepted(position, num)
        position = min(position + accepted + 1, text.length)
        ends.append(position)
        drafted.append(num)
    return ends, drafted


def totals(
    text: Text, plans: Sequence[Plan], costs: CostTable, guides: Mapping[str, StopRule]
) -> Totals:
    """Rounds and seconds of every plan on this text."""
    longest = max(plan.length for plan in plans)
    known = costs.at(text.batch_size, list(text.tracks), longest)
    rounds, seconds = np.zeros(len(plans)), np.zeros(len(plans))
    for index, plan in enumerate(plans):
        _, drafted = fixed_path(text, plan, guides)
        counts = np.bincount(drafted, minlength=longest + 1)
        rounds[index] = len(drafted)
        draft_s = known.draft_s.get(plan.drafter, 0.0)
        seconds[index] = counts @ (known.target_s + draft_s * np.arange(longest + 1))
    plain_s = text.length * float(known.target_s[0])
    return Totals(rounds, seconds, text.length, plain_s)


def best_plan(found: Sequence[Totals], *, by_seconds: bool, among: Ints | None = None) -> int:
    """The plan that took least over all texts together; ties go to the first.

    among: indices of the plans that count; None = all.
    """
    total = np.sum([t.seconds if by_seconds else t.rounds for t in found], axis=0)
    chosen = np.arange(len(total)) if among is None else among
    return int(chosen[total[chosen].argmin()])


def rounds_to_reach(ends: Sequence[int], position: int) -> int:
    """Rounds after which a path has emitted ``position`` tokens.

    >>> rounds_to_reach([3, 4, 9], 4), rounds_to_reach([3, 4, 9], 5), rounds_to_reach([3], 0)
    (2, 3, 0)
    """
    return bisect_left(ends, position) + 1 if position > 0 else 0
