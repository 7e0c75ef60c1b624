"""A contest of draftwise with transformers: exploration, measurement, summary, resuming.

With the same settings a later run resumes; with more repeats it adds repeats. The methods are
draftwise with any preset or plan, and generation by transformers.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftwise.bench.results import (
    Row,
    Run,
    Sheet,
    command,
    environment,
    make_sheet,
    ratio,
    summary,
    turns,
)
from draftwise.bench.session import Asked, Contestant, Encoder, OurContestant, TimedReply, as_run
from draftwise.bench.session import contest as turns_of
from draftwise.bench.suites import DEFAULT, PLAIN, Item, Method, Suite
from draftwise.drafters.lm import LMDrafter
from draftwise.files import write_text
from draftwise.registry import PRESETS
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError
from draftwise_lab.bench import studio
from draftwise_lab.bench.commit import commit
from draftwise_lab.bench.peers import (
    DEFAULT_METHODS,
    LOOKUP,
    TRANSFORMERS,
    Known,
    PeerContestant,
    expand,
    parse,
)
from draftwise_lab.bench.records import TRACE, ContestRun, ContestSettings, RunStore, course
from draftwise_lab.bench.scout import Question

GoesOn = Callable[[], bool]  # called between answers: False ends the contest
Report = Callable[[str, int, int], None]  # stage, number done, total


def make_contestants(
    methods: Sequence[str], base: Speculator, asked: Asked, wanted: Sequence[str]
) -> tuple[list[Contestant], dict[str, str]]:
    """Make the contestants; return why others are left out (an error for ``wanted`` ones)."""
    drafters = {d.name: isinstance(d, LMDrafter) for d in base.drafters}
    made: list[Contestant] = []
    left_out: dict[str, str] = {}
    for method in methods:
        try:
            spec = parse(method, drafters)
            if isinstance(spec, Method):
                made.append(OurContestant(spec, base, asked))
            else:
                made.append(PeerContestant(spec, base, asked))
        except DraftwiseError as error:
            if method in wanted:
                raise
            left_out[method] = str(error)
    return made, left_out


class Recorder:
    """Makes runs from answers, with the course of a policy for the first item of each domain."""

    def __init__(self, items: Sequence[Item], tick: Callable[[], None]) -> None:
        self._tick = tick
        domains = [item.domain for item in items]
        self._with_course = {domains.index(domain) for domain in domains}

    def __call__(
        self, contestant: Contestant, repeat: int, index: int, domain: str,
        replies: Sequence[TimedReply],
    ) -> ContestRun:  # fmt: skip
        run = as_run(contestant.name, repeat, index, domain, replies)
        rounds = [round_ for reply in replies for round_ in reply.rounds]
        phases: Counter[str] = Counter()
        for one in rounds:
            phases.update(one.seconds)
        has_course = repeat == 0 and index in self._with_course
        the_course = None
        if has_course and isinstance(contestant, OurContestant):
            the_course = course(rounds, contestant.speculator.plans)
        self._tick()
        return ContestRun(
            **asdict(run),
            phases=dict(phases),
            pulls=dict(Counter(r.plan.drafter for r in rounds)),
            round_s=[round(sum(r.seconds.values()), 7) for r in rounds],
            course=the_course,
        )


@dataclass(frozen=True, slots=True)
class ContestResult:
    """results: as in ``results.json``; runs and suite for the report."""

    results: dict[str, Any]
    runs: list[ContestRun]
    suite: Suite
    tokenizer: Any
    paths: list[Path]


def measure(
    wanted: ContestSettings, suite: Suite, store: RunStore, base: Speculator, goes_on: GoesOn,
    report: Report, explores: bool = True,
) -> ContestResult | None:  # fmt: skip
    """Run the missing turns and summarise all runs; None if no turn is complete.

    explores: whether to record the exploration run even if no group needs it (for the report).
    """
    items, asked = suite.items, Asked(wanted.tokens, wanted.temperature)
    encoder, settings = Encoder(base, asked, wanted.is_chat), store.settings()
    dtype, device = str(base.target.dtype).removeprefix("torch."), str(base.target.device)
    made_on = environment(wanted.setup.threads, dtype=dtype, device=device, commit=commit())
    now = {"environment": made_on, "command": command()}
    if settings is None:
        questions = [Question(item.domain, encoder.prompt(item, []).tokens) for item in items]
        specs = wanted.methods or DEFAULT_METHODS
        looks = explores or bool({"fixed", "peers"}.intersection(specs))
        known = _first_look(wanted, asked, questions, base, goes_on, report, looks)
        if known is None:
            return None
        names = expand(specs, known)
        found, left_out = make_contestants(names, base, asked, wanted.methods)
        taking_part = {"methods": [each.name for each in found], "skipped": left_out}
        settings = wanted.settings(suite) | taking_part | now
        store.begin(settings)
    methods: list[str] = settings["methods"]
    contestants, _ = make_contestants(methods, base, asked, methods)
    done, total = store.load(len(methods)), wanted.repeats * len(items) * len(methods)
    finished = {(run.repeat, run.item) for run in done}
    plan = turns([one.name for one in contestants], len(items), wanted.repeats, wanted.seed)
    todo = [turn for turn in plan if turn[:2] not in finished]
    numbers = itertools.count(min(len(done), total) + 1)

    recorder = Recorder(items, lambda: report("measuring", next(numbers), total))
    measured = None
    try:
        for runs in turns_of(contestants, items, encoder, todo, wanted.seed, goes_on, recorder):
            store.add(runs)
    finally:
        if done := store.load(len(methods)):
            summed = _sum_up(wanted, suite, done, base, settings, now, len(encoder.cut))
            path = store.folder / "results.json"
            write_text(path, json.dumps(summed, indent=1) + "\n")
            paths = [path, *store.folder.glob(TRACE)]
            if all(item.category for item in suite.items):  # as Spec-Bench has them
                folder = store.folder / "answers"
                paths += studio.write_answers(folder, items, done, base.tokenizer)
            measured = ContestResult(summed, done, suite, base.tokenizer, paths)
    return measured


def _first_look(
    wanted: ContestSettings, asked: Asked, questions: Sequence[Question], base: Speculator,
    goes_on: GoesOn, report: Report, looks: bool,
) -> Known | None:  # fmt: skip
    """Record the exploration run's trace and return its findings; None if it was stopped."""
    if not base.drafters:
        raise DraftwiseError("a bench needs a drafter: give --drafter")
    if not looks:  # no fixed plan; the first model is the assistant
        models = (drafter.name for drafter in base.drafters if isinstance(drafter, LMDrafter))
        return Known([], next(models, None))
    path, numbers = wanted.out / TRACE, itertools.count(1)

    def tick() -> bool:
        report("first look", next(numbers), len(questions))
        return goes_on()

    if not studio.scout(base, questions, asked, path, wanted.seed, tick):
        return None
    return studio.look(path, base, most=2, each=1)


def _sum_up(
    wanted: ContestSettings, suite: Suite, runs: Sequence[Run], base: Speculator,
    settings: dict[str, Any], now: dict[str, Any], num_cut: int,
) -> dict[str, Any]:  # fmt: skip
    methods: list[str] = settings["methods"]
    then = {key: settings[key] for key in now}  # environment and command of the first run
    is_exact = wanted.temperature == 0 and then["environment"]["dtype"] in {"float32", "float64"}
    sheet = make_sheet(runs, methods, can_compare=is_exact, clock=wanted.clock)
    cpu_s, wall_s = (sum(run.by_clock(clock) for run in runs) for clock in ("cpu", "wall"))
    return {
        "command": then["command"],
        "suite": wanted.suite,
        "settings": {key: value for key, value in settings.items() if key not in now}
        | {
            "num_items": len(suite.items),
            "num_items_measured": len({run.item for run in runs}),
            "repeats": 1 + max(run.repeat for run in runs),
            "num_prompts_cut": num_cut,
            "clock": wanted.clock,
        },
        "drafters": [drafter.name for drafter in base.drafters],
        "is_complete": len(runs) >= wanted.repeats * len(suite.items) * len(methods),
        **rounded(contest_results(sheet)),
        "environment": then["environment"] | {"cpu_share": cpu_s / wall_s},
        "last_command": now["command"],
        "last_commit": now["environment"]["commit"],
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def rounded(value: Any) -> Any:
    """Round all numbers to six significant digits; more would suggest false precision.

    >>> rounded({"a": [1.23456789, 7, None]})
    {'a': [1.23457, 7, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list) else value


def contest_results(sheet: Sheet) -> dict[str, Any]:
    """``methods`` and ``comparisons``, in total and for every domain."""
    parts, found = sheet.by_domain(), summary(sheet)
    tables = [(sheet, found["methods"])]
    tables += [(part, found["domains"][domain]) for domain, part in parts.items()]
    for part, table in tables:
        for name, row in table.items():
            row.update(_of_the_engine(part, name))
    return {
        **found,
        "comparisons": comparisons(sheet, parts),
        "domain_comparisons": {domain: comparisons(part, {}) for domain, part in parts.items()},
    }


def _of_the_engine(sheet: Sheet, name: str) -> Row:
    runs, clock = [run for run in sheet.runs[name] if isinstance(run, ContestRun)], sheet.clock
    tokens = sum(run.num_tokens for run in runs)
    num_rounds = sum(sum(run.num_rounds) for run in runs)
    more: Row = {
        "verification_rate": num_rounds / tokens if tokens else 0.0,
        "s_per_round": sum(run.by_clock(clock) for run in runs) / max(1, num_rounds),
        "discard_rate": None, "phases": {}, "pulls": {},
    }  # fmt: skip
    if all(run.num_drafted is None for run in runs):
        return more
    drafted = sum(run.num_drafted or 0 for run in runs)
    accepted = sum(run.num_accepted or 0 for run in runs)
    phases: Counter[str] = Counter()
    pulls: Counter[str] = Counter()
    for run in runs:
        scale = run.scale(clock) / max(1, tokens)
        phases.update({phase: seconds * scale for phase, seconds in run.phases.items()})
        pulls.update(run.pulls)
    discarded = (drafted - accepted) / max(1, tokens)
    return more | {"discard_rate": discarded, "phases": dict(phases), "pulls": dict(pulls)}


def comparisons(sheet: Sheet, parts: Mapping[str, Sheet]) -> dict[str, Row]:
    """Speed of the default relative to other methods; the best of a group is chosen on this run.

    parts: sheets by domain, for the best fixed plan of each domain; empty = no such entry.
    """
    timing = sheet.timing
    if DEFAULT not in timing.names:
        return {}
    presets = [n for n in timing.names if n.partition("@")[0] in PRESETS.keys() - {PLAIN, DEFAULT}]
    peers = [n for n in timing.names if n.startswith(f"{TRANSFORMERS}:")]
    groups = {
        "plain decoding": [PLAIN],
        "model.generate": [TRANSFORMERS],
        "best peer": peers,
        "best assisted generation": [n for n in peers if f":{LOOKUP}" not in n],
        "best preset": presets,
        "best fixed plan": [n for n in timing.names if n.startswith("fixed:")],
    }
    found: dict[str, Row] = {}
    for label, group in groups.items():
        if names := [name for name in group if name in timing.names]:
            best = max(names, key=timing.tok_per_s)
            found[label] = {"methods": [best], **timing.compare(DEFAULT, best).as_json()}
    if parts and (fixed := groups["best fixed plan"]):
        found["best fixed plan of each domain"] = _hindsight(sheet, parts, fixed)
    return found


def _hindsight(sheet: Sheet, parts: Mapping[str, Sheet], fixed: Sequence[str]) -> Row:
    """Compare the default with an oracle that uses the best fixed plan of each domain."""
    best = {domain: max(fixed, key=part.timing.tok_per_s) for domain, part in parts.items()}
    timing, names = sheet.timing, sheet.timing.names
    picked = [names.index(best[domain]) for domain in sheet.domains], range(len(sheet.domains))
    theirs = timing.num_tokens[picked], timing.seconds[picked]
    return {"methods": best, **ratio(*timing.of(DEFAULT), *theirs).as_json()}
