"""A first look: every item once, played at random and scored by all drafters, as a trace to replay.

It is not timed. What it is for: which fixed plans are worth measuring, the oracle,
regret of plans that were not played, ``draftwise replay`` and ``draftwise advise``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from draftwise.bench import Asked, Known, Question
from draftwise.drafters import LMDrafter
from draftwise.presets import Preset
from draftwise.speculator import Speculator
from draftwise.types import Floats, Plan
from draftwise_lab.sim.contestants import make_plans
from draftwise_lab.sim.environments.rounds import RoundTrace
from draftwise_lab.sim.hindsight import totals

LENGTHS = (1, 2, 4, 8, 16)
"""Played at random, so that every length's seconds are measured."""
_WORTH_MEASURING = (1, 2, 3, 4, 6, 8, 12, 16)
"""Fixed lengths that are proposed: those between differ by less than noise."""
_SETTING = Preset("random", "length", "panoramic", LENGTHS, with_none=True)


def scout(
    base: Speculator,
    questions: Sequence[Question],
    asked: Asked,
    path: Path,
    seed: int,
    tick: Callable[[], bool],
) -> bool:
    """Write the trace; whether it is complete: ``tick`` is asked between items and may end it."""
    speculator = Speculator(base.target, base.tokenizer, base.drafters, _SETTING)
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for number, question in enumerate(questions):
            generation = speculator.start(
                [list(question.prompt)],
                max_new_tokens=asked.max_new_tokens,
                temperature=asked.temperature,
                seed=seed,
            )
            for round_ in generation:
                record = round_.as_json() | {"request": number, "domain": question.domain}
                file.write(json.dumps(record) + "\n")
            if not tick():
                return False
    part.replace(path)
    return True


def look(path: Path, base: Speculator, most: int, each: int) -> Known:
    """The fixed plans that a replay finds fastest: ``most`` of all, ``each`` of every domain.

    assistant: the model with the highest mean alpha over all items.
    """
    trace = RoundTrace(path)
    plans = make_plans(trace.drafters, _WORTH_MEASURING)
    found: dict[str, None] = {}
    everything = []
    for domain in trace.domains:
        texts = trace.texts(domain, 0, trace.num_tokens, max(LENGTHS))
        mine = [totals(text, plans, trace.costs, {}) for text in texts]
        everything += mine
        found |= dict.fromkeys(_fastest(plans, np.sum([t.seconds for t in mine], axis=0), each))
    first = _fastest(plans, np.sum([t.seconds for t in everything], axis=0), most)
    models = [d.name for d in base.drafters if isinstance(d, LMDrafter)]
    return Known(list(dict.fromkeys([*first, *found])), _best_model(trace, models))


def _fastest(plans: Sequence[Plan], seconds: Floats, num: int) -> list[str]:
    """The best length of each drafter, and of these the fastest few."""
    best: dict[str, str] = {}
    for index in np.argsort(seconds, kind="stable").tolist():
        best.setdefault(plans[index].drafter, str(plans[index]))
    return list(best.values())[:num]


def _best_model(trace: RoundTrace, models: Sequence[str]) -> str | None:
    alphas: dict[str, list[float]] = {name: [] for name in models if name in trace.drafters}
    for domain in trace.domains:
        for text in trace.texts(domain, 0, trace.num_tokens, 1):
            for name, found in alphas.items():
                found.append(float(text.tracks[name].alphas[: text.length].mean()))
    return max(alphas, key=lambda name: np.mean(alphas[name]), default=None)
