"""draftwise as a contestant: any setting, on the one target and the drafters in memory."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from draftwise import registry
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.protocol import Drafter
from draftwise.drafters.suffix import SuffixDrafter
from draftwise.engine.records import Round
from draftwise.presets import PRESETS, Preset, preset
from draftwise.speculator import Speculator
from draftwise.types import NONE, DraftwiseError, Plan


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


class PeerContestant:
    """``model.generate`` in one of its ways.

    An assistant's options live in its generation config, where a schedule also keeps what it has
    learned; so each contestant has a config of its own, and the assistant gets it for the answer.
    """

    def __init__(self, spec: Peer, base: Speculator, asked: Asked) -> None:
        self.name, self._asked = spec.name, asked
        self._model = base.target.module
        self._options: dict[str, Any] = _sampling(asked)
        self._assistant: Any = None
        self._config: Any = None
        if spec.drafter == LOOKUP:
            self._options["prompt_lookup_num_tokens"] = spec.length
        elif spec.drafter is not None:
            self._assistant = _module(base, spec.drafter)
            self._options["assistant_model"] = self._assistant
            self._config = copy.deepcopy(self._assistant.generation_config)
            self._config.num_assistant_tokens = spec.length
            self._config.num_assistant_tokens_schedule = spec.schedule
            self._config.assistant_confidence_threshold = spec.threshold

    def begin(self) -> None:
        """Nothing is remembered but the schedule, which transformers keeps on purpose."""

    def answer(self, prompt: Sequence[int], seed: int) -> Reply:
        """Answer a prompt, timed from prompt to last token."""
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
        return Reply(tokens, seconds, cpu_s, counter.emitted)


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


def _sampling(asked: Asked) -> dict[str, Any]:
    """The same drawing as draftwise's, in transformers' words."""
    options: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "do_sample": False}
    if asked.temperature > 0:
        options |= {"do_sample": True, "temperature": asked.temperature, "top_k": 0, "top_p": 1.0}
    return options


def _module(base: Speculator, name: str) -> Any:
    """The weights of a drafter that is a model."""
    for drafter in base.drafters:
        if drafter.name == name and isinstance(drafter, LMDrafter):
            return drafter.model.module
    raise AssertionError(f"{name} was checked to be a model")


PLAIN, DEFAULT, TRANSFORMERS = "plain", "draftwise", "transformers"
GROUPS = ("presets", "fixed", "peers")
LOOKUP = "lookup"
LOOKUP_LENGTH = 10
"""Tokens that transformers' prompt lookup proposes by default, as in its docs."""
CONFIDENCE = 0.4
"""transformers' own default of ``assistant_confidence_threshold``."""
_GRAMMAR = (
    "write plain, a preset (metasd, metasd@4), fixed:DRAFTERxLENGTH, transformers, "
    "transformers:lookup, transformers:DRAFTERxLENGTH[/heuristic|/confidence], "
    f"or a group: {', '.join(GROUPS)}"
)


@dataclass(frozen=True, slots=True)
class Ours:
    """draftwise in some setting; drafter: the only one it gets, None = all of the pool."""

    name: str
    setting: Preset
    drafter: str | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether it plays one plan of one drafter and never learns."""
        return self.drafter is not None


@dataclass(frozen=True, slots=True)
class Peer:
    """transformers' own generation.

    drafter: None = greedy; ``lookup`` = prompt lookup; else an assistant model. schedule:
    ``constant`` or ``heuristic``; threshold: assistant_confidence_threshold, 0 = none.
    """

    name: str
    drafter: str | None = None
    length: int = 0
    schedule: str = "constant"
    threshold: float = 0.0


MethodSpec = Ours | Peer


@dataclass(frozen=True, slots=True)
class Known:
    """What groups stand for: the fixed plans and the assistant that a first look found best."""

    plans: Sequence[str]
    assistant: str | None


def default_methods() -> list[str]:
    """What is compared by default."""
    return [PLAIN, "presets", "fixed", "peers"]


def check_methods(specs: Sequence[str]) -> None:
    """Refuse what no drafter could make sense of; raises DraftwiseError."""
    for spec in specs:
        if spec not in GROUPS:
            parse_method(spec)


def expand(specs: Sequence[str], known: Known) -> list[str]:
    """Groups to their members; ``plain`` first, each once.

    >>> expand(["fixed", "plain"], Known(["lookupx4"], None))
    ['plain', 'fixed:lookupx4']
    """
    assisted = []
    if known.assistant is not None:
        name = f"{TRANSFORMERS}:{known.assistant}"
        assisted = [f"{name}x5", f"{name}x5/heuristic", f"{name}x20/confidence"]
    members: Mapping[str, list[str]] = {
        "presets": [name for name in PRESETS if name != PLAIN],
        "fixed": [f"fixed:{plan}" for plan in known.plans],
        "peers": [TRANSFORMERS, f"{TRANSFORMERS}:{LOOKUP}", *assisted],
    }
    found = [PLAIN]
    for spec in specs:
        found += members.get(spec, [spec])
    return list(dict.fromkeys(found))


def parse_method(spec: str, drafters: Mapping[str, bool] | None = None) -> MethodSpec:
    """One method; drafters: name -> whether it is a model, None = any name will do.

    Raises DraftwiseError for what is no method, or a drafter that is not there.
    """
    kind, _, rest = spec.partition(":")
    if kind == "fixed":
        return _fixed(spec, rest, drafters)
    if kind == TRANSFORMERS:
        return _peer(spec, rest, drafters)
    name, at, lengths = spec.partition("@")
    if name not in PRESETS:
        raise DraftwiseError(f"unknown method {spec!r}; {_GRAMMAR}")
    setting = preset(name)
    if at:
        setting = replace(setting, lengths=_lengths(spec, lengths))
        setting.plans(["drafter"])
    return Ours(spec, setting)


def _fixed(spec: str, rest: str, drafters: Mapping[str, bool] | None) -> Ours:
    plan, _, rule = rest.partition("/")
    drafter, length = _drafter_and_length(spec, plan)
    _require(spec, drafter, drafters)
    if rule:
        registry.make_guide(rule)
    setting = Preset("fixed:0", "length", "bandit", (length,), rules=(rule or "fixed",))
    setting.plans([drafter])
    return Ours(spec, setting, drafter)


def _peer(spec: str, rest: str, drafters: Mapping[str, bool] | None) -> Peer:
    if not rest:
        return Peer(spec)
    plan, _, way = rest.partition("/")
    if plan == LOOKUP:
        plan = f"{LOOKUP}x{LOOKUP_LENGTH}"
    drafter, length = _drafter_and_length(spec, plan)
    if length < 1:
        raise DraftwiseError(f"method {spec!r}: a length is 1 or more tokens")
    if drafter == LOOKUP:
        if way:
            raise DraftwiseError(f"method {spec!r}: prompt lookup has no schedule")
        return Peer(spec, LOOKUP, length)
    _require(spec, drafter, drafters)
    if drafters is not None and not drafters[drafter]:
        raise DraftwiseError(f"method {spec!r}: transformers takes models as assistants only")
    name, equals, value = way.partition("=")
    if name in {"", "heuristic"} and not equals:
        return Peer(spec, drafter, length, name or "constant")
    if name != "confidence":
        raise DraftwiseError(f"method {spec!r}: write /heuristic, /confidence or /confidence=0.4")
    return Peer(spec, drafter, length, "constant", _threshold(spec, value))


def _threshold(spec: str, text: str) -> float:
    try:
        found = float(text) if text else CONFIDENCE
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise DraftwiseError(f"method {spec!r}: a confidence is a number from 0 to 1")
    return found


def _drafter_and_length(spec: str, plan: str) -> tuple[str, int]:
    drafter, _, length = plan.rpartition("x")
    if not drafter or not length.isdigit():
        raise DraftwiseError(f"method {spec!r} names no plan; {_GRAMMAR}")
    return drafter, int(length)


def _require(spec: str, drafter: str, drafters: Mapping[str, bool] | None) -> None:
    if drafters is not None and drafter not in drafters:
        names = ", ".join(drafters)
        raise DraftwiseError(f"method {spec!r}: no drafter {drafter!r}; there are: {names}")


def _lengths(spec: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise DraftwiseError(f"method {spec!r}: write lengths as metasd@4 or metasd@2,4") from None
