"""draftwise as a contestant: any setting, on the one target and the drafters in memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwise.bench.methods import Ours
from draftwise.drafters.protocol import Drafter
from draftwise.drafters.suffix import SuffixDrafter
from draftwise.engine.records import Round
from draftwise.speculator import Speculator
from draftwise.types import NONE, Plan


@dataclass(frozen=True, slots=True)
class Asked:
    """How all methods answer: tokens at most, and how they are drawn."""

    max_new_tokens: int
    temperature: float = 0.0


@dataclass(slots=True)
class Reply:
    """One turn's answer. seconds: wall time; cpu_s: what this process had of the processor.

    emitted: tokens of every round; rounds: draftwise's own records.
    """

    tokens: list[int]
    seconds: float
    cpu_s: float
    emitted: list[int]
    rounds: list[Round] = field(default_factory=list)


class OurContestant:
    """One setting; what its drafters remember of earlier answers is forgotten with each repeat."""

    def __init__(self, spec: Ours, base: Speculator, asked: Asked) -> None:
        self.name, self._spec, self._base, self._asked = spec.name, spec, base, asked
        self._has_memory = any(isinstance(d, SuffixDrafter) for d in base.drafters)
        self._speculator = self._make()

    @property
    def plans(self) -> Sequence[Plan]:
        """What its policy chooses among."""
        return self._speculator.plans

    def begin(self) -> None:
        """A repeat begins: no drafter may copy its answers to the last one."""
        if self._has_memory:
            self._speculator = self._make()

    def answer(self, prompt: Sequence[int], seed: int) -> Reply:
        """Answer a prompt, timed from prompt to last token."""
        start, cpu = time.perf_counter(), time.process_time()
        wall_before, cpu_before = self._speculator.compiling()
        generation = self._speculator.start(
            [list(prompt)],
            max_new_tokens=self._asked.max_new_tokens,
            temperature=self._asked.temperature,
            seed=seed,
        )
        rounds = list(generation)
        tokens = generation.results()[0].tokens
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        wall_after, cpu_after = self._speculator.compiling()
        seconds, cpu_s = seconds - (wall_after - wall_before), cpu_s - (cpu_after - cpu_before)
        return Reply(tokens, seconds, cpu_s, [r.num_emitted for r in rounds], rounds)

    def _make(self) -> Speculator:
        base, spec = self._base, self._spec
        wanted = [d for d in base.drafters if spec.drafter in {None, d.name}]
        drafters = [_fresh(d) for d in wanted] if spec.setting.lengths else []
        return Speculator(base.target, base.tokenizer, drafters, spec.setting)


def _fresh(drafter: Drafter) -> Drafter:
    """Models and datastores are shared; a memory of past answers is each contestant's own."""
    return drafter.forgetful() if isinstance(drafter, SuffixDrafter) else drafter


def counts(replies: Sequence[Reply]) -> dict[str, Any]:
    """The fields of a run that only draftwise knows."""
    rounds = [round_ for reply in replies for round_ in reply.rounds]
    if not rounds:
        return {}
    phases: Counter[str] = Counter()
    for round_ in rounds:
        phases.update(round_.seconds)
    return {
        "num_drafted": sum(round_.num_drafted for round_ in rounds),
        "num_accepted": sum(round_.num_accepted for round_ in rounds),
        "phases": dict(phases),
        "pulls": dict(Counter(round_.plan.drafter for round_ in rounds)),
        "round_s": [round(sum(round_.seconds.values()), 7) for round_ in rounds],
    }


def course(replies: Sequence[Reply], plans: Sequence[Plan]) -> dict[str, Any]:
    """What a policy played and thought, round by round, and each token's writer.

    Plans are grouped into arms: by stop rule, drafter or length, whatever they differ in first.
    values [R][arms]: the best estimate of each arm's plans; played [R]: the arm of each round.
    """
    arm_of = _arms(plans)
    names = list(dict.fromkeys(arm_of.values()))
    rounds = [round_ for reply in replies for round_ in reply.rounds]
    members = {name: [i for i, plan in enumerate(plans) if arm_of[plan] == name] for name in names}
    return {
        "arms": names,
        "played": [names.index(arm_of[plans[round_.plan_index]]) for round_ in rounds],
        "values": [
            [float(max(round_.estimates[i] for i in members[name])) for name in names]
            for round_ in rounds
        ],
        "plans": [str(round_.plan) for round_ in rounds],
        "sources": [source for round_ in rounds for source in round_.sources],
    }


def _arms(plans: Sequence[Plan]) -> Mapping[Plan, str]:
    real = [plan for plan in plans if plan.drafter != NONE]
    if len({plan.rule for plan in real}) > 1:
        return {plan: plan.rule if plan in real else NONE for plan in plans}
    if len({plan.drafter for plan in real}) > 1:
        return {plan: plan.drafter for plan in plans}
    return {plan: str(plan) for plan in plans}
