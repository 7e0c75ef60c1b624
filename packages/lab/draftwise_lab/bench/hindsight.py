"""What could have been, from the trace: every fixed plan's cost on every item, and the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftwise.presets import MAX_LENGTH
from draftwise.types import Plan
from draftwise_lab.sim.contestants import make_plans
from draftwise_lab.sim.environments.rounds import RoundTrace
from draftwise_lab.sim.hindsight import fixed_path, totals
from draftwise_lab.sim.text import Text

Point = tuple[float, float]
"""Discard rate (discarded / emitted) and verification rate (target forwards / emitted)."""


@dataclass(frozen=True, slots=True)
class Hindsight:
    """best_drafter: of each item, by seconds. fixed: by drafter, a point for every length of
    ``lengths``. oracle: by drafter, of drafts that end just before the first rejection; ``any``
    also takes the drafter that goes furthest, round by round.
    """

    lengths: Sequence[int]
    best_drafter: Mapping[int, str]
    fixed: Mapping[str, Sequence[Point]]
    oracle: Mapping[str, Point]


def look_back(path: Path, longest: int = MAX_LENGTH) -> Hindsight:
    """Replay a trace with every plan; raises DraftwiseError if it is none."""
    trace = RoundTrace(path)
    texts = {
        int(text.name.split()[-1]): text
        for domain in trace.domains
        for text in trace.texts(domain, 0, trace.num_tokens, longest)
    }
    plans = make_plans(trace.drafters, range(1, longest + 1))
    best = {}
    for item, text in texts.items():
        found = totals(text, plans, trace.costs, {})
        best[item] = plans[int(found.seconds.argmin())].drafter
    every = list(texts.values())
    drafters = list(trace.drafters)
    oracle = {name: _oracle(every, [name], longest) for name in drafters}
    return Hindsight(
        range(1, longest + 1),
        best,
        {name: [_point(every, Plan(name, n)) for n in range(1, longest + 1)] for name in drafters},
        oracle | {"any": _oracle(every, drafters, longest)},
    )


def _point(texts: Sequence[Text], plan: Plan) -> Point:
    """Where a fixed plan lies, all texts together."""
    rounds = drafted = tokens = 0
    for text in texts:
        ends, lengths = fixed_path(text, plan, {})
        rounds += len(ends)
        drafted += sum(lengths)
        tokens += text.length
    # whatever is emitted and not a round's bonus token was drafted and accepted
    return (drafted - (tokens - rounds)) / tokens, rounds / tokens


def _oracle(texts: Sequence[Text], drafters: Sequence[str], longest: int) -> Point:
    """Nothing is discarded; the rounds that are left with perfect stopping."""
    rounds = sum(_oracle_rounds(text, drafters, longest) for text in texts)
    return 0.0, rounds / sum(text.length for text in texts)


def _oracle_rounds(text: Text, drafters: Sequence[str], longest: int) -> int:
    reach = np.zeros(text.length, dtype=np.int64)
    for name in drafters:
        track = text.tracks[name]
        most = [track.num_drafted(i, longest, longest, None) for i in range(text.length)]
        reach = np.maximum(reach, np.minimum(track.runs[: text.length], most))
    position = rounds = 0
    while position < text.length:
        position += int(reach[position]) + 1
        rounds += 1
    return rounds
