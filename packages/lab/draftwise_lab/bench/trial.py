"""A short run for ``draftwise advise``: kinds of drafters, and costs by batch size."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftwise.drafters import EagleDrafter, LMDrafter
from draftwise.registry import Preset
from draftwise.speculator import Speculator
from draftwise_lab.bench.advice import Source
from draftwise_lab.bench.scout import LENGTHS
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.traces import costs_by_batch

TIMED_TOKENS = 24
"""Of each request while a batch size is timed."""


def sources_of(speculator: Speculator, paths: Mapping[str, str]) -> dict[str, Source]:
    """Kinds of its drafters as other engines know them. paths: folders of weights by name."""
    found = {}
    for drafter in speculator.drafters:
        kind = next((k for k in ("suffix", "datastore") if drafter.name.startswith(k)), "lookup")
        if isinstance(drafter, LMDrafter):
            kind = "model"
        elif isinstance(drafter, EagleDrafter):
            kind = {"EAGLE-3": "eagle3"}.get(drafter.head.title, "eagle")
        elif not drafter.retrieves:
            kind = type(drafter).__name__
        found[drafter.name] = Source(kind, paths.get(drafter.name, drafter.name))
    return found


def time_batches(
    speculator: Speculator, prompts: Sequence[Sequence[int]], drafter: str, sizes: Sequence[int],
    tick: Callable[[], Any] = lambda: None,
) -> dict[int, CostTable]:  # fmt: skip
    """Seconds of steps by number of requests: plain, and with drafts of each fixed length.

    Prompts repeat if there are fewer than requests. All requests of a step play the same plan.
    """
    own = [one for one in speculator.drafters if one.name == drafter]
    records: list[dict[str, Any]] = []
    for size in sizes:
        batch = [list(prompts[index % len(prompts)]) for index in range(size)]
        for length in (0, *LENGTHS):
            setting = Preset("fixed:0", "length", "bandit", (length,) if length else ())
            made = Speculator(
                speculator.target, speculator.tokenizer, own if length else [], setting
            )
            for _ in range(2):  # the first run is warm-up
                rounds = [
                    round_.as_json()
                    for round_ in made.start(batch, max_new_tokens=TIMED_TOKENS, temperature=0.0)
                ]
            records += [one for one in rounds if one["batch_size"] == size]
            tick()
    return costs_by_batch(json.loads(json.dumps(records)), need_plain=True)
