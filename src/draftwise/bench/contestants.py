"""What answers a bench's prompts: draftwise in any setting, and transformers' own generation."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from draftwise.bench.methods import LOOKUP, Ours, Peer
from draftwise.drafters.lm import LMDrafter
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
class TimedReply:
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
        return self._speculator.plans

    def begin(self) -> None:
        """A repeat begins: no drafter may copy its answers to the last one."""
        if self._has_memory:
            self._speculator = self._make()

    def answer(self, prompt: Sequence[int], seed: int) -> TimedReply:
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
        return TimedReply(tokens, seconds, cpu_s, [r.num_emitted for r in rounds], rounds)

    def _make(self) -> Speculator:
        base, spec = self._base, self._spec
        wanted = [d for d in base.drafters if spec.drafter in {None, d.name}]
        if not spec.setting.lengths:
            wanted = []
        # models and datastores are shared; a memory of past answers is each contestant's own
        own = [d.forgetful() if isinstance(d, SuffixDrafter) else d for d in wanted]
        return Speculator(base.target, base.tokenizer, own, spec.setting)


def counts(replies: Sequence[TimedReply]) -> dict[str, Any]:
    """The fields of a run that only draftwise knows."""
    rounds = [r for reply in replies for r in reply.rounds]
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


def course(replies: Sequence[TimedReply], plans: Sequence[Plan]) -> dict[str, Any]:
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


class PeerContestant:
    """``model.generate`` in one of its ways.

    An assistant's options live in its generation config, where a schedule also keeps what it has
    learned; so each contestant has a config of its own, and the assistant gets it for the answer.
    """

    def __init__(self, spec: Peer, base: Speculator, asked: Asked) -> None:
        self.name, self._asked = spec.name, asked
        self._model = base.target.module
        self._options: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "do_sample": False}
        if heat := asked.temperature:
            self._options |= {"do_sample": True, "temperature": heat, "top_k": 0, "top_p": 1.0}
        self._assistant: Any = None
        self._config: Any = None
        if spec.drafter == LOOKUP:
            self._options["prompt_lookup_num_tokens"] = spec.length
        elif spec.drafter is not None:
            models = {d.name: d.model for d in base.drafters if isinstance(d, LMDrafter)}
            self._assistant = models[spec.drafter].module
            self._options["assistant_model"] = self._assistant
            self._config = copy.deepcopy(self._assistant.generation_config)
            self._config.num_assistant_tokens = spec.length
            self._config.num_assistant_tokens_schedule = spec.schedule
            self._config.assistant_confidence_threshold = spec.threshold

    def begin(self) -> None:
        """Nothing is remembered but the schedule, which transformers keeps on purpose."""

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
        return TimedReply(tokens, seconds, cpu_s, counter.emitted)


class _RoundCounter:
    """A streamer that only counts: it is given the prompt, then each round's tokens."""

    def __init__(self) -> None:
        self.emitted: list[int] = []
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt:
            self.emitted.append(value.numel())
        self._has_prompt = True

    def end(self) -> None:
        """The answer is complete."""
