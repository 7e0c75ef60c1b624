"""A bench from start to end: look, measure, sum up; whatever ends it, what was measured stays.

Run again with the same settings it goes on where it ended; with more repeats it adds them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.bench.contest import Contest, Encoder, make_contestants
from draftwise.bench.environment import command, environment
from draftwise.bench.methods import Known, default_methods, expand
from draftwise.bench.ours import Asked
from draftwise.bench.results import make_sheet, results
from draftwise.bench.runs import Run, Store, rounded, write_json
from draftwise.bench.studio import TRACE, Question, Studio, unaided
from draftwise.bench.suites import Suite
from draftwise.bench.wish import Wish
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError

RESULTS = "results.json"
Tell = Callable[[str, int, int], None]
"""Told what is being done, and how much of how much is done."""


@dataclass(frozen=True, slots=True)
class Measured:
    """results: as in ``results.json``; runs and suite for the report."""

    results: dict[str, Any]
    runs: list[Run]
    suite: Suite
    tokenizer: Any
    paths: list[Path]


def measure(
    wish: Wish, suite: Suite, store: Store, base: Speculator, goes_on: Callable[[], bool],
    tell: Tell, studio: Studio | None = None,
) -> Measured | None:  # fmt: skip
    """Measure what is missing, and sum up what there is; None if not one turn is whole.

    studio: what the lab adds; without it the group ``fixed`` is empty.
    """
    asked = Asked(wish.tokens, wish.temperature)
    encoder = Encoder(base, asked)
    settings = store.settings()
    if settings is None:
        known = _first_look(wish, suite, base, encoder, asked, goes_on, tell, studio)
        if known is None:
            return None
        names = expand(wish.methods or default_methods(), known)
        found, left_out = make_contestants(names, base, asked, wish.methods)
        settings = wish.settings(suite) | {
            "methods": [c.name for c in found],
            "skipped": left_out,
            **_circumstances(wish, base),
        }
        store.begin(settings)
    methods: list[str] = settings["methods"]
    contestants, _ = make_contestants(methods, base, asked, methods)
    done = store.load(len(methods))
    total = wish.repeats * len(suite.items) * len(methods)
    count = [min(len(done), total)]

    def progress() -> None:
        count[0] += 1
        tell("measuring", count[0], total)

    try:
        Contest(contestants, suite.items, encoder, store, wish.seed).run(
            wish.repeats, done, goes_on, progress
        )
    finally:
        measured = _sum_up(wish, suite, store, base, settings, encoder.num_cut, studio)
    return measured


def _first_look(
    wish: Wish, suite: Suite, base: Speculator, encoder: Encoder, asked: Asked,
    goes_on: Callable[[], bool], tell: Tell, studio: Studio | None,
) -> Known | None:  # fmt: skip
    """The trace of a first look, and what it says; None if it was ended early."""
    if not base.drafters:
        raise DraftwiseError("a bench needs a drafter: give --drafter")
    if studio is None:
        return unaided(base)
    path = wish.out / TRACE
    questions = [Question(i.domain, encoder.prompt(i, [])) for i in suite.items]
    count = [0]

    def tick() -> bool:
        count[0] += 1
        tell("first look", count[0], len(questions))
        return goes_on()

    if not studio.scout(base, questions, asked, path, wish.seed, tick):
        return None
    return studio.look(path, base, *wish.fixed)


def _sum_up(
    wish: Wish, suite: Suite, store: Store, base: Speculator, settings: dict[str, Any],
    num_cut: int, studio: Studio | None,
) -> Measured | None:  # fmt: skip
    """Write what was measured so far; None if that is nothing."""
    methods: list[str] = settings["methods"]
    runs = store.load(len(methods))
    if not runs:
        return None
    now = _circumstances(wish, base)
    then = {key: settings[key] for key in now}  # of the first turn: what was measured
    is_exact = wish.temperature == 0 and then["environment"]["dtype"] in {"float32", "float64"}
    sheet = make_sheet(runs, methods, can_compare=is_exact, clock=wish.clock)
    found = {
        "command": then["command"],
        "suite": wish.suite,
        "settings": {key: value for key, value in settings.items() if key not in now}
        | {
            "num_items": len(suite.items),
            "num_items_measured": len({run.item for run in runs}),
            "repeats": 1 + max(run.repeat for run in runs),
            "num_prompts_cut": num_cut,
            "clock": wish.clock,
        },
        "drafters": [drafter.name for drafter in base.drafters],
        "is_complete": len(runs) >= wish.repeats * len(suite.items) * len(methods),
        **rounded(results(sheet)),
        "environment": then["environment"] | {"cpu_share": _cpu_share(runs)},
        "last_command": now["command"],
        "last_commit": now["environment"]["commit"],
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    path = store.folder / RESULTS
    write_json(path, found)
    paths = [path, *store.folder.glob(TRACE)]
    if suite.is_spec_bench and studio is not None:
        paths += studio.write_answers(store.folder / "answers", suite.items, runs, base.tokenizer)
    return Measured(found, runs, suite, base.tokenizer, paths)


def _circumstances(wish: Wish, base: Speculator) -> dict[str, Any]:
    """Machine, versions, commit and command."""
    dtype = str(base.target.dtype).removeprefix("torch.")
    device = str(base.target.device)
    made_on = environment(wish.threads, dtype=dtype, device=device)
    return {"environment": made_on, "command": command()}


def _cpu_share(runs: Sequence[Run]) -> float:
    """Processors that this process had, on average, while it answered."""
    return sum(run.by_clock("cpu") for run in runs) / sum(run.by_clock("wall") for run in runs)
