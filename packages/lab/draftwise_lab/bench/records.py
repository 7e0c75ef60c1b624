"""Settings and runs of a contest, their file, from which a later run resumes, and courses."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from draftwise.bench.results import Run
from draftwise.bench.suites import Suite, load_suite
from draftwise.checks import known
from draftwise.engine.outputs import Round
from draftwise.files import write_text
from draftwise.settings import Settings
from draftwise.types import NONE, DraftwiseError, Plan
from draftwise_lab.bench.peers import DEFAULT_METHODS, check_methods

TRACE = "trace.jsonl"  # trace of the exploration run, in the contest's folder


@dataclass(frozen=True, slots=True)
class ContestRun(Run):
    """A run with what the report shows.

    phases: seconds of the engine. pulls: rounds by drafter. round_s: seconds of every round.
    course: plans and estimates of a policy, recorded for a few runs (``course``).
    """

    phases: dict[str, float] = field(default_factory=dict)
    pulls: dict[str, int] = field(default_factory=dict)
    round_s: list[float] = field(default_factory=list)
    course: dict[str, Any] | None = None

    def scale(self, clock: str) -> float:
        """The factor from the engine's seconds, which are wall time, to seconds of a clock."""
        return self.by_clock(clock) / self.by_clock("wall")


class RunStore:
    """The folder of a benchmark; its file has the settings in the first line, then runs by turn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "runs.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._path.open("a").close()
        except OSError as error:
            raise DraftwiseError(f"results cannot go to {folder}: {error.strerror}") from error

    def settings(self) -> dict[str, Any] | None:
        """The settings of an earlier run; None if there was none."""
        with self._path.open(encoding="utf-8") as file:
            first = file.readline()
        if not first.strip():
            return None
        try:
            found: dict[str, Any] = json.loads(first)["settings"]
        except (ValueError, KeyError, TypeError):
            why = f"{self._path} is no file of a bench: give another --out"
            raise DraftwiseError(why) from None
        return found

    def begin(self, settings: Mapping[str, Any]) -> None:
        self._path.write_text(json.dumps({"settings": settings}) + "\n", "utf-8")

    def load(self, num_methods: int) -> list[ContestRun]:
        """Load all complete turns, and remove incomplete ones from the file."""
        header, *lines = self._path.read_text("utf-8", errors="replace").splitlines()
        found = list[ContestRun]()
        for line in lines:
            with suppress(ValueError, TypeError):
                found.append(ContestRun(**json.loads(line)))
        whole = whole_turns(found, num_methods)
        if len(whole) < len([line for line in lines if line.strip()]):
            write_text(self._path, "\n".join([header, *map(_line, whole)]) + "\n")
        return whole

    def add(self, runs: Sequence[Run]) -> None:
        """Append the runs of one turn, and sync the file to disk."""
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(_line(run) + "\n" for run in runs)
            file.flush()
            os.fsync(file.fileno())


def _line(run: Run) -> str:
    return json.dumps(asdict(run))


def whole_turns(runs: Sequence[ContestRun], num_methods: int) -> list[ContestRun]:
    """The turns in which every method answered; the others cannot be compared."""
    counts = Counter((run.repeat, run.item) for run in runs)
    return [run for run in runs if counts[run.repeat, run.item] == num_methods]


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


@dataclass(frozen=True, slots=True)
class ContestSettings:
    """Settings of a contest.

    methods: empty = the default ones. domains: empty = all. prompts: maximum per domain; None =
    all. tokens: maximum per answer. clock: ``wall``, or ``cpu`` on a shared machine. is_chat: as
    for ``Encoder``.
    """

    suite: str
    out: Path
    methods: Sequence[str] = ()
    domains: Sequence[str] = ()
    prompts: int | None = None
    tokens: int = 128
    repeats: int = 3
    temperature: float = 0.0
    seed: int = 0
    clock: str = "wall"
    is_chat: bool | None = None
    setup: Settings = field(default_factory=Settings)

    def settings(self, suite: Suite) -> dict[str, Any]:
        """Settings that must be equal for a run to resume an earlier one."""
        models = ("target", "drafters", "dtype", "device")
        return {
            "suite": self.suite,
            "items": [item.id for item in suite.items],
            "asked": list(self.methods or DEFAULT_METHODS),
            "tokens": self.tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "is_chat": self.is_chat,
            "threads": self.setup.threads,
            "models": {name: one for name in models if (one := getattr(self.setup, name))},
        }


def prepare(wanted: ContestSettings) -> tuple[Suite, RunStore]:
    """Check settings and open the store before a model is loaded; raises DraftwiseError."""
    for name in ("tokens", "repeats", "prompts"):
        value = getattr(wanted, name)
        if value is not None and value < 1:
            raise DraftwiseError(f"--{name} {value}: it must be 1 or more")
    known("clock", wanted.clock, ("wall", "cpu"))
    check_methods(wanted.methods)
    suite = load_suite(wanted.suite, wanted.prompts, wanted.domains)
    store = RunStore(wanted.out)
    if (earlier := store.settings()) is not None:
        for key, value in wanted.settings(suite).items():
            if earlier.get(key) != value:
                why = f"holds a bench with other {key}; give another --out, or remove it"
                raise DraftwiseError(f"{wanted.out} {why}")
    return suite, store
