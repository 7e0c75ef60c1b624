"""An exploration pass over every item, and fixed plans and oracles replayed on its trace.

The pass plays random plans and scores all drafters, untimed. Its trace shows which fixed plans are
worth measuring, and is input for ``draftwise replay`` and ``draftwise advise``. This module also
infers drafters' kinds and measures costs by batch size, for ``advise`` without a trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.bench.session import Asked
from draftwise.drafters.eagle import EagleDrafter
from draftwise.drafters.lm import LMDrafter
from draftwise.registry import MAX_LENGTH, Preset
from draftwise.settings import name_and_spec
from draftwise.speculator import Speculator
from draftwise.types import Floats, Plan
from draftwise_lab.bench.advice import Source
from draftwise_lab.bench.peers import Known
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.match import best_by_drafter, fixed_path, make_plans, totals
from draftwise_lab.sim.text import Text
from draftwise_lab.sim.traces import RoundTrace, costs_by_batch

Point = tuple[float, float]
"""Discard rate (discarded / emitted) and verification rate (target forwards / emitted)."""


@dataclass(frozen=True, slots=True)
class Hindsight:
    """best_drafter: by item, the fastest. fixed: by drafter, a point for every length in
    ``lengths``. oracle: by drafter, for drafts that end just before the first rejection; ``any``
    also chooses the drafter with the most accepted tokens in each round."""

    lengths: Sequence[int]
    best_drafter: Mapping[int, str]
    fixed: Mapping[str, Sequence[Point]]
    oracle: Mapping[str, Point]


def look_back(path: Path, longest: int = MAX_LENGTH) -> Hindsight:
    """Replay a trace with every plan. Errors: DraftwiseError if the file is no trace."""
    trace = RoundTrace(path)
    texts = {
        int(text.name.split()[-1]): text
        for domain in trace.domains
        for text in trace.texts(domain, 0, trace.num_tokens, longest)
    }
    plans = make_plans(trace.drafters, range(1, longest + 1))
    best = {
        item: plans[int(totals(text, plans, trace.costs, {}).seconds.argmin())].drafter
        for item, text in texts.items()
    }
    every, drafters, lengths = list(texts.values()), trace.drafters, range(1, longest + 1)
    fixed = {name: [_point(every, Plan(name, n)) for n in lengths] for name in drafters}
    oracle = {name: _oracle(every, [name], longest) for name in drafters}
    oracle["any"] = _oracle(every, drafters, longest)
    return Hindsight(lengths, best, fixed, oracle)


def _point(texts: Sequence[Text], plan: Plan) -> Point:
    lengths = [num for text in texts for num in fixed_path(text, plan, {})[1]]
    tokens, rounds = sum(text.length for text in texts), len(lengths)
    # every emitted token except one bonus token per round was drafted and accepted
    return (sum(lengths) - (tokens - rounds)) / tokens, rounds / tokens


def _oracle(texts: Sequence[Text], drafters: Sequence[str], longest: int) -> Point:
    """The point of optimal stopping: no token is discarded."""
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


@dataclass(frozen=True, slots=True)
class Question:
    domain: str
    prompt: Sequence[int]


LENGTHS = (1, 2, 4, 8, 16)
"""Lengths of the random plans, so that the seconds of each are measured."""
_WORTH_MEASURING = (1, 2, 3, 4, 6, 8, 12, 16)
"""Fixed lengths that are proposed; lengths in between differ by less than noise."""
_SETTING = Preset("random", "length", "panoramic", LENGTHS, with_none=True)


def scout(
    base: Speculator,
    questions: Sequence[Question],
    asked: Asked,
    path: Path,
    seed: int,
    tick: Callable[[], bool],
) -> bool:
    """Write the trace; return whether it is complete. ``tick`` may stop the pass between items."""
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
    """The plans that a replay finds fastest: ``most`` overall, and ``each`` per domain. assistant:
    the model drafter with the highest mean alpha over all items."""
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
    """The fastest few of the plans with the best length of each drafter."""
    return [str(plans[index]) for index in best_by_drafter(plans, seconds).values()][:num]


def _best_model(trace: RoundTrace, models: Sequence[str]) -> str | None:
    texts = [t for d in trace.domains for t in trace.texts(d, 0, trace.num_tokens, 1)]
    alphas = {
        name: np.mean([text.tracks[name].alphas[: text.length].mean() for text in texts])
        for name in models
        if name in trace.drafters
    }
    return max(alphas, key=alphas.__getitem__, default=None)


TIMED_TOKENS = 24
"""Tokens of each request in the timing of a batch size."""


def sources_of(speculator: Speculator, specs: Sequence[str]) -> dict[str, Source]:
    """The drafters as other engines know them. specs: the drafters' specs, in order."""
    found = {}
    for drafter, spec in zip(speculator.drafters, specs, strict=True):
        kind = next((k for k in ("suffix", "datastore") if drafter.name.startswith(k)), "lookup")
        if isinstance(drafter, LMDrafter):
            kind = "model"
        elif isinstance(drafter, EagleDrafter):
            kind = {"EAGLE-3": "eagle3"}.get(drafter.head.title, "eagle")
        elif not drafter.retrieves:
            kind = type(drafter).__name__
        given = name_and_spec(spec)[1].partition(":")[2].partition(",")[0].removeprefix("path=")
        is_gguf = given.lower().endswith(".gguf")
        home = getattr(drafter, "home", None) or ("" if is_gguf else given)
        found[drafter.name] = Source(kind, str(home), given if is_gguf else "")
    return found


def time_batches(
    speculator: Speculator, prompts: Sequence[Sequence[int]], drafter: str, sizes: Sequence[int],
    tick: Callable[[], Any] = lambda: None,
) -> dict[int, CostTable]:  # fmt: skip
    """Time steps by number of requests: plain, and with drafts of each fixed length. Prompts repeat
    if there are fewer than requests. All requests of a step play the same plan."""
    own = [one for one in speculator.drafters if one.name == drafter]
    records: list[dict[str, Any]] = []
    for size in sizes:
        batch = [list(prompts[index % len(prompts)]) for index in range(size)]
        for length in (0, *LENGTHS):
            setting = Preset("fixed:0", "length", "bandit", (length,) if length else ())
            drafters = own if length else []
            made = Speculator(speculator.target, speculator.tokenizer, drafters, setting)
            for _ in range(2):  # the first run is warm-up
                rounds = list(made.start(batch, max_new_tokens=TIMED_TOKENS, temperature=0.0))
            found = [round_.as_json() for round_ in rounds]
            records += [one for one in found if one["batch_size"] == size]
            tick()
    return costs_by_batch(json.loads(json.dumps(records)), need_plain=True)
