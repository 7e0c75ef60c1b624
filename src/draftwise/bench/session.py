"""Runs a benchmark: exploration, measurement, summary. Interruptions keep what was measured.

With the same settings a later run resumes; with more repeats it adds repeats. The methods are
draftwise with any preset or plan, and generation by transformers.
"""

from __future__ import annotations

import copy
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from draftwise.bench.environment import command, environment
from draftwise.bench.methods import DEFAULT_METHODS, LOOKUP, Known, Ours, Peer, expand, parse_method
from draftwise.bench.results import make_sheet, results, turns
from draftwise.bench.runs import BenchSettings, Run, RunStore, rounded
from draftwise.bench.suites import Item, Suite
from draftwise.chat import render
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.suffix import SuffixDrafter
from draftwise.engine.outputs import Round
from draftwise.files import write_text
from draftwise.speculator import Speculator
from draftwise.types import NONE, DraftwiseError, Plan

TRACE = "trace.jsonl"  # trace of the exploration run, in the benchmark's folder


@dataclass(frozen=True, slots=True)
class Asked:
    """The sampling parameters of all methods."""

    max_new_tokens: int
    temperature: float = 0.0


@dataclass(slots=True)
class TimedReply:
    """One turn's answer. seconds: wall time; cpu_s: CPU time of this process. emitted: by round."""

    tokens: list[int]
    seconds: float
    cpu_s: float
    emitted: list[int]
    rounds: list[Round] = field(default_factory=list)


class OurContestant:
    """draftwise with one preset or plan; drafters forget earlier answers at each repeat."""

    def __init__(self, spec: Ours, base: Speculator, asked: Asked) -> None:
        self.name, self._spec, self._base, self._asked = spec.name, spec, base, asked
        self._speculator = self._make()

    @property
    def plans(self) -> Sequence[Plan]:
        return self._speculator.plans

    def begin(self) -> None:
        """Begin a repeat: drafters must not copy answers of the previous one."""
        if any(isinstance(drafter, SuffixDrafter) for drafter in self._base.drafters):
            self._speculator = self._make()

    def answer(self, prompt: Sequence[int], seed: int) -> TimedReply:
        start, cpu = time.perf_counter(), time.process_time()
        generation = self._speculator.start([list(prompt)], seed=seed, **asdict(self._asked))
        rounds = list(generation)
        tokens = generation.results()[0].tokens
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        return TimedReply(tokens, seconds, cpu_s, [r.num_emitted for r in rounds], rounds)

    def _make(self) -> Speculator:
        base, spec = self._base, self._spec
        # contestants share models and datastores, but no memory of past answers
        own = [
            d.forgetful() if isinstance(d, SuffixDrafter) else d
            for d in base.drafters
            if spec.setting.lengths and spec.drafter in {None, d.name}
        ]
        return Speculator(base.target, base.tokenizer, own, spec.setting)


def counts(rounds: Sequence[Round]) -> dict[str, Any]:
    """The fields of a run that only draftwise reports."""
    if not rounds:
        return {}
    phases: Counter[str] = Counter()
    for one in rounds:
        phases.update(one.seconds)
    return {
        "num_drafted": sum(r.num_drafted for r in rounds),
        "num_accepted": sum(r.num_accepted for r in rounds),
        "phases": dict(phases),
        "pulls": dict(Counter(r.plan.drafter for r in rounds)),
        "round_s": [round(sum(r.seconds.values()), 7) for r in rounds],
    }


def course(rounds: Sequence[Round], plans: Sequence[Plan]) -> dict[str, Any]:
    """A policy's choices and estimates by round, and the source of each token.

    Plans are grouped into arms by the first of stop rule, drafter and length that differs.
    values [R][arms]: the best estimate of each arm's plans; played [R]: the arm of each round.
    """
    arms = _arms(plans)
    names = list(dict.fromkeys(arms))
    members = [[i for i, arm in enumerate(arms) if arm == name] for name in names]
    return {
        "arms": names,
        "played": [names.index(arms[round_.plan_index]) for round_ in rounds],
        "values": [[float(one.estimates[own].max()) for own in members] for one in rounds],
        "plans": [str(round_.plan) for round_ in rounds],
        "sources": [source for round_ in rounds for source in round_.sources],
    }


def _arms(plans: Sequence[Plan]) -> list[str]:
    real = [plan for plan in plans if plan.drafter != NONE]
    if len({plan.rule for plan in real}) > 1:
        return [NONE if plan.drafter == NONE else plan.rule for plan in plans]
    if len({plan.drafter for plan in real}) > 1:
        return [plan.drafter for plan in plans]
    return [str(plan) for plan in plans]


class PeerContestant:
    """transformers' ``model.generate``, plain or assisted.

    The options and the schedule's state live in the assistant's generation config, so each
    contestant has a separate config, which the assistant has while it answers.
    """

    def __init__(self, spec: Peer, base: Speculator, asked: Asked) -> None:
        self.name, self._model = spec.name, base.target.module
        self._options: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "do_sample": False}
        if heat := asked.temperature:
            self._options |= {"do_sample": True, "temperature": heat, "top_k": 0, "top_p": 1.0}
        self._assistant: Any = None
        self._config: Any = None
        if spec.drafter == LOOKUP:
            self._options["prompt_lookup_num_tokens"] = spec.length
        elif spec.drafter is not None:
            models = {d.name: d.model for d in base.drafters if isinstance(d, LMDrafter)}
            self._options["assistant_model"] = self._assistant = models[spec.drafter].module
            self._config = copy.deepcopy(self._assistant.generation_config)
            self._config.num_assistant_tokens = spec.length
            self._config.num_assistant_tokens_schedule = spec.schedule
            self._config.assistant_confidence_threshold = spec.threshold

    def begin(self) -> None:
        """Reset nothing: transformers keeps the schedule's state between answers."""

    def answer(self, prompt: Sequence[int], seed: int) -> TimedReply:
        counter = _RoundCounter()
        ids = torch.tensor([list(prompt)], device=self._model.device)
        torch.manual_seed(seed)
        usual = None if self._assistant is None else self._assistant.generation_config
        if usual is not None:
            self._assistant.generation_config = self._config
        try:
            start, cpu = time.perf_counter(), time.process_time()
            with torch.inference_mode():
                output = self._model.generate(
                    ids, attention_mask=torch.ones_like(ids), streamer=counter, **self._options
                )
            tokens = output[0, len(prompt) :].tolist()
            seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        finally:
            if usual is not None:
                self._assistant.generation_config = usual
        return TimedReply(tokens, seconds, cpu_s, counter.counts[1:])


class _RoundCounter:
    """A streamer that counts the tokens of the prompt, then those of each round."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.counts.append(value.numel())

    def end(self) -> None:
        """The answer is complete."""


@dataclass(frozen=True, slots=True)
class Question:
    domain: str
    prompt: Sequence[int]


GoesOn = Callable[[], bool]  # called between answers: False ends the benchmark
Report = Callable[[str, int, int], None]  # stage, number done, total
Contestant = OurContestant | PeerContestant


class Encoder:
    """Encodes items; long prompts are truncated at the start, and ``cut`` has the items' ids."""

    def __init__(self, base: Speculator, asked: Asked) -> None:
        self._tokenizer = base.tokenizer
        self._room = base.target.max_positions - asked.max_new_tokens
        self.cut: set[str] = set()
        if self._tokenizer is None:
            raise DraftwiseError("the target has no tokenizer: a bench needs one for its prompts")
        if self._room < 1:
            why = f"the target has {base.target.max_positions} positions, and a prompt needs some"
            raise DraftwiseError(f"--tokens {asked.max_new_tokens}: {why} of them")

    def prompt(self, item: Item, answers: Sequence[Sequence[int]]) -> list[int]:
        said = [self._tokenizer.decode(list(ids), skip_special_tokens=True) for ids in answers]
        asked = item.turns[: len(answers) + 1]
        parts = [*(part for pair in zip(asked, said, strict=False) for part in pair), asked[-1]]
        if item.category and getattr(self._tokenizer, "chat_template", None):
            roles = itertools.cycle(("user", "assistant"))
            messages = [{"role": next(roles), "content": part} for part in parts]
            ids = render(messages, self._tokenizer).tokens
        else:
            ids = self._tokenizer("\n\n".join(parts))["input_ids"]
        if not ids:
            raise DraftwiseError(f"item {item.id} of {item.domain} is empty: nothing to continue")
        if len(ids) > self._room:
            self.cut.add(item.id)
        return list(ids[-self._room :])


def make_contestants(
    methods: Sequence[str], base: Speculator, asked: Asked, wanted: Sequence[str]
) -> tuple[list[Contestant], dict[str, str]]:
    """Make the contestants; return why others are left out (an error for ``wanted`` ones)."""
    drafters = {d.name: isinstance(d, LMDrafter) for d in base.drafters}
    made: list[Contestant] = []
    left_out: dict[str, str] = {}
    for method in methods:
        try:
            spec = parse_method(method, drafters)
            if isinstance(spec, Ours):
                made.append(OurContestant(spec, base, asked))
            else:
                made.append(PeerContestant(spec, base, asked))
        except DraftwiseError as error:
            if method in wanted:
                raise
            left_out[method] = str(error)
    return made, left_out


class Contest:
    """Runs all contestants on all items; the store holds the whole state."""

    def __init__(
        self, contestants: Sequence[Contestant], items: Sequence[Item], encoder: Encoder,
        store: RunStore, seed: int,
    ) -> None:  # fmt: skip
        self._contestants = {c.name: c for c in contestants}
        self._items, self._encoder, self._store, self._seed = items, encoder, store, seed
        domains = [item.domain for item in items]
        self._with_course = {domains.index(domain) for domain in domains}  # the first of each

    def run(
        self, repeats: int, done: Sequence[Run], goes_on: GoesOn, progress: Callable[[], None]
    ) -> None:
        """Warm up, then run every missing turn while ``goes_on`` returns True."""
        finished = {(run.repeat, run.item) for run in done}
        plan = turns(list(self._contestants), len(self._items), repeats, self._seed)
        todo = [turn for turn in plan if turn[:2] not in finished]
        if not todo or not self._warm_up(todo[0][1], goes_on):
            return
        repeat_now = todo[0][0]
        for repeat, index, order in todo:
            if repeat != repeat_now:
                repeat_now = repeat
                for contestant in self._contestants.values():
                    contestant.begin()
            runs = []
            for name in order:
                if not goes_on():
                    return
                runs.append(self._answer(self._contestants[name], repeat, index))
                progress()
            self._store.add(runs)

    def _warm_up(self, index: int, goes_on: GoesOn) -> bool:
        """Run one uncounted answer each, for allocators, lazy imports and first-time costs."""
        for contestant in self._contestants.values():
            if not goes_on():
                return False
            contestant.answer(self._encoder.prompt(self._items[index], []), self._seed)
            contestant.begin()
        return True

    def _answer(self, contestant: Contestant, repeat: int, index: int) -> Run:
        item, replies = self._items[index], list[TimedReply]()
        for _ in item.turns:
            prompt = self._encoder.prompt(item, [reply.tokens for reply in replies])
            replies.append(contestant.answer(prompt, self._seed + repeat))
        rounds = [round_ for reply in replies for round_ in reply.rounds]
        more = counts(rounds)
        if repeat == 0 and index in self._with_course and isinstance(contestant, OurContestant):
            more["course"] = course(rounds, contestant.plans)
        return Run(
            method=contestant.name,
            repeat=repeat,
            item=index,
            domain=item.domain,
            tokens=[reply.tokens for reply in replies],
            seconds=[reply.seconds for reply in replies],
            cpu_s=[reply.cpu_s for reply in replies],
            num_rounds=[len(reply.emitted) for reply in replies],
            emitted=[num for reply in replies for num in reply.emitted],
            **more,
        )


@dataclass(frozen=True, slots=True)
class ContestResult:
    """results: as in ``results.json``; runs and suite for the report."""

    results: dict[str, Any]
    runs: list[Run]
    suite: Suite
    tokenizer: Any
    paths: list[Path]


def measure(
    wanted: BenchSettings, suite: Suite, store: RunStore, base: Speculator, goes_on: GoesOn,
    report: Report, studio: Any = None, explores: bool = True,
) -> ContestResult | None:  # fmt: skip
    """Run the missing turns and summarise all runs; None if no turn is complete.

    studio: the lab's module ``draftwise_lab.bench.studio``; None = the group ``fixed`` is empty.
    explores: whether to record the exploration run even if no group needs it (for the report).
    """
    items, asked = suite.items, Asked(wanted.tokens, wanted.temperature)
    encoder, settings = Encoder(base, asked), store.settings()
    dtype, device = str(base.target.dtype).removeprefix("torch."), str(base.target.device)
    made_on = environment(wanted.setup.threads, dtype=dtype, device=device)
    now = {"environment": made_on, "command": command()}
    if settings is None:
        questions = [Question(item.domain, encoder.prompt(item, [])) for item in items]
        specs = wanted.methods or DEFAULT_METHODS
        looking = studio if explores or {"fixed", "peers"}.intersection(specs) else None
        known = _first_look(wanted, asked, questions, base, goes_on, report, looking)
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
    contest = Contest(contestants, items, encoder, store, wanted.seed)
    measured = None
    try:
        numbers = itertools.count(min(len(done), total) + 1)
        contest.run(
            wanted.repeats, done, goes_on, lambda: report("measuring", next(numbers), total)
        )
    finally:
        if runs := store.load(len(methods)):
            summary = _sum_up(wanted, suite, runs, base, settings, now, len(encoder.cut))
            path = store.folder / "results.json"
            write_text(path, json.dumps(summary, indent=1) + "\n")
            paths = [path, *store.folder.glob(TRACE)]
            if suite.is_spec_bench and studio is not None:
                folder = store.folder / "answers"
                paths += studio.write_answers(folder, items, runs, base.tokenizer)
            measured = ContestResult(summary, runs, suite, base.tokenizer, paths)
    return measured


def _first_look(
    wanted: BenchSettings, asked: Asked, questions: Sequence[Question], base: Speculator,
    goes_on: GoesOn, report: Report, studio: Any,
) -> Known | None:  # fmt: skip
    """Record the exploration run's trace and return its findings; None if it was stopped."""
    if not base.drafters:
        raise DraftwiseError("a bench needs a drafter: give --drafter")
    if studio is None:  # no fixed plan; the first model is the assistant
        models = (drafter.name for drafter in base.drafters if isinstance(drafter, LMDrafter))
        return Known([], next(models, None))
    path, numbers = wanted.out / TRACE, itertools.count(1)

    def tick() -> bool:
        report("first look", next(numbers), len(questions))
        return goes_on()

    if not studio.scout(base, questions, asked, path, wanted.seed, tick):
        return None
    found: Known = studio.look(path, base, most=2, each=1)
    return found


def _sum_up(
    wanted: BenchSettings, suite: Suite, runs: Sequence[Run], base: Speculator,
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
        **rounded(results(sheet)),
        "environment": then["environment"] | {"cpu_share": cpu_s / wall_s},
        "last_command": now["command"],
        "last_commit": now["environment"]["commit"],
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
