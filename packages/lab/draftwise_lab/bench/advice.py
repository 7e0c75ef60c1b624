"""Replays of recorded traffic: other policies, and fixed settings for engines that do not learn.

Everything is computed from a trace: which draft tokens the target would have accepted, and the
seconds of steps. Each request's gain is that of the setting chosen on the other requests, so that
selecting the best of many settings does not inflate it; intervals are bootstraps over requests.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.bench.results import Ratio, ratio
from draftwise.types import NONE, DraftwiseError, Floats, Plan
from draftwise_lab.sim import match as m
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.traces import RoundTrace, trace_setting

ADAPTIVE = "goodput"
"""The policy of the default preset."""
WELL_COVERED = 0.9
"""Share of scored tokens at which a replay is considered reliable."""
EXCLUDED = "prefill (reading the prompts) is in none of the speeds: a trace holds rounds"
"""What all numbers of a replay exclude."""
OF_TEXTS = (
    "the gains are of these texts: edits, quotations and repeated text gain most, short questions "
    "and temperature 1 least"
)


@dataclass(frozen=True, slots=True)
class Replay:
    """A match played on a trace. recorded: set for Round records only."""

    match: m.Match
    outcome: m.Outcome
    is_measured: bool

    @property
    def recorded(self) -> RoundTrace | None:
        found = self.match.environment
        return found if isinstance(found, RoundTrace) else None


def play_trace(
    path: Path, policies: Sequence[str], *, costs: str | None = None, reward: str | None = None,
    feedback: str | None = None, lengths: str | None = None, seeds: int = 1,
) -> Replay:  # fmt: skip
    """Play every policy on every request of the trace. Errors: DraftwiseError."""
    if not policies:
        raise DraftwiseError("name a policy to replay with: --policy goodput")
    setting = trace_setting(path, costs)
    found = setting.make(None)
    num_tokens = found.num_tokens if isinstance(found, RoundTrace) else setting.tokens
    match = m.make_match(
        setting, policies, reward=reward, feedback=feedback, lengths=lengths, tokens=num_tokens
    )
    is_measured = costs is None and path.suffix == ".jsonl"
    return Replay(match, m.run_match(match, range(seeds)), is_measured)


def replay_report(path: Path, replay: Replay) -> dict[str, Any]:
    """``simulate``'s JSON object, plus the recorded run and the replay's coverage."""
    found = m.report(path.name, replay.match, replay.outcome)
    found |= {"unit": unit(replay), "excludes": ["prefill"]}
    trace = replay.recorded
    if trace is not None:
        found |= {"recorded": trace.played(), "coverage": trace.coverage()}
    return found


def unit(replay: Replay) -> str:
    """The unit of speeds; without measured seconds, the cost table's unit."""
    return "tok/s" if replay.is_measured else "tokens a unit of the cost table"


ENGINES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("lookup", "suffix", "model", "eagle", "eagle3"),
    "sglang": ("eagle", "eagle3"),
    "llama.cpp": ("lookup", "model", "eagle3"),
    "transformers": ("lookup", "model"),
}
"""By engine: the kinds of drafters that it runs at a configurable draft length."""
BATCHED = ("vllm", "sglang")
"""Engines whose draft length may depend on the number of running requests."""
LOOKUP_NGRAMS = (1, 8)
"""Shortest and longest n-gram of the default ``lookup``, which traces have measured; vLLM (5) and
transformers (2) have other defaults."""


@dataclass(frozen=True, slots=True)
class Source:
    """A drafter as other engines know it. kind: as in ``ENGINES``, or "datastore"; path: folder or
    hub id of its weights; gguf: its GGUF file for llama.cpp. Empty = unknown."""

    kind: str
    path: str = ""
    gguf: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter at its best fixed length for all requests, and the expected gain. speedup: relative
    to plain decoding, each request at the length chosen on the other requests."""

    drafter: str
    length: int
    speedup: Ratio

    def as_json(self) -> dict[str, Any]:
        return {"length": self.length, "speedup": self.speedup.as_json() if self.length else None}


def advise(
    path: Path,
    *,
    costs: str | None = None,
    seeds: int = 5,
    engines: Sequence[str] = tuple(ENGINES),
    sources: Mapping[str, Source] | None = None,
    weights: Sequence[str] = (),
    at_batch: Mapping[int, CostTable] | None = None,
) -> dict[str, Any]:
    """Find the best fixed setting for each engine, next to the adaptive default; returns JSON.

    sources: kinds of the drafters; None = inferred from names and scores. weights: the drafters'
    weights, as ``NAME=PATH``. at_batch: seconds of steps by number of requests; None = the trace's.
    Errors: DraftwiseError if the file is no trace, or for weights of a drafter that it lacks.
    """
    replay = play_trace(path, [ADAPTIVE], costs=costs, seeds=seeds)
    plans, trace = replay.match.plans, replay.recorded
    if sources is None:
        names = dict.fromkeys(plan.drafter for plan in plans if plan.drafter != NONE)
        sources = {name: _guessed(name, trace) for name in names}
    sources, found = with_weights(sources, weights), m.sums_by_text(replay.outcome)
    if at_batch is None and trace is not None and costs is None:
        at_batch = trace.costs_by_batch
    total_s = found.plans_s.sum(axis=1)
    rows = [
        {"drafter": drafter, "length": plans[index].length, **_speed(found, found.plans_s[index])}
        for drafter, index in m.best_by_drafter(plans, total_s).items()
    ]
    adaptive_s = found.policies_s[ADAPTIVE]
    over = ratio(found.tokens, adaptive_s, found.tokens, found.plans_s[int(total_s.argmin())])
    advice = _Advice(replay, found, at_batch or {}, sources, seeds)
    return {
        "trace": str(path),
        "unit": unit(replay),
        "excludes": ["prefill"],
        "num_requests": len(found.tokens),
        "best": rows[0],
        "plain": _speed(found, found.plain_s),
        "adaptive": {"policy": ADAPTIVE, **_speed(found, adaptive_s), "over_best": over.as_json()},
        "by_drafter": rows,
        "coverage": None if trace is None else trace.coverage(),
        "engines": {engine: advice.of(engine) for engine in engines},
    }


@dataclass(frozen=True, slots=True)
class _Advice:
    replay: Replay
    found: m.TextSums
    at_batch: Mapping[int, CostTable]
    sources: Mapping[str, Source]
    seeds: int

    def of(self, engine: str) -> dict[str, Any]:
        """Setting, text to paste, expected gain by batch size, and what that gain excludes."""
        able = {name for name, source in self.sources.items() if source.kind in ENGINES[engine]}
        if not able:
            why = f"no drafter of the trace is one that {engine} runs"
            return {"setting": None, "paste": None, "speedup": None, "why": why}
        plans = self.replay.match.plans
        best = choose(plans, self.found.plans_s, self.found.plain_s, self.found.tokens, able)
        sizes = sorted(self.at_batch) if engine in BATCHED else [1]
        by_batch = [(size, self._at(size, best.drafter)) for size in sizes if len(sizes) > 1]
        lengths = [(size, choice.length) for size, choice in by_batch]
        source = self.sources.get(best.drafter)
        setting, excluded = None, _excludes(engine, source, sizes)
        if source is not None and any(length for _, length in [(0, best.length), *lengths]):
            path, to_do = _weights(engine, best.drafter, source)
            setting = SETTINGS[engine](replace(source, path=path), best.length, lengths)
            excluded += to_do
        return {
            "drafter": best.drafter,
            **best.as_json(),
            "by_batch": [{"batch_size": size, **each.as_json()} for size, each in by_batch],
            "setting": setting,
            "paste": None if setting is None else PASTE[engine](setting),
            "excludes": excluded,
        }

    def _at(self, size: int, drafter: str) -> Choice:
        """The best length of a drafter at a batch size; 0 if no length beats plain decoding."""
        plans, trace = self.replay.match.plans, self.replay.recorded
        assert trace is not None
        own = [index for index, plan in enumerate(plans) if plan.drafter in {drafter, NONE}]
        some = [plans[index] for index in own]
        plans_s, plain_s = np.zeros((len(some), 0)), np.zeros(0)
        for domain in trace.domains:
            longest, seeds = max(plan.length for plan in some), range(self.seeds)
            many = [trace.texts(domain, seed, trace.num_tokens, longest) for seed in seeds]
            for texts in zip(*many, strict=True):
                own_texts = [replace(text, batch_size=size) for text in texts]
                each = [m.totals(text, some, self.at_batch[size], {}) for text in own_texts]
                plans_s = np.column_stack([plans_s, np.sum([one.seconds for one in each], axis=0)])
                plain_s = np.append(plain_s, sum(one.plain_s for one in each))
        return choose(some, plans_s, plain_s, self.found.tokens, {drafter})


def choose(
    plans: Sequence[Plan], plans_s: Floats, plain_s: Floats, tokens: Floats, able: set[str]
) -> Choice:
    """The fastest plan of the drafters ``able``, or plain decoding. plans_s: [K, P] seconds of
    every plan on every request; plain_s, tokens: [P]."""
    own = [index for index, plan in enumerate(plans) if plan.drafter in able | {NONE}]
    seconds = plans_s[own]
    total = seconds.sum(axis=1)
    others = total[:, None] - seconds if len(plain_s) > 1 else total[:, None]
    held_out_s = seconds[others.argmin(axis=0), np.arange(len(plain_s))]
    best = plans[own[int(total.argmin())]]
    return Choice(best.drafter, best.length, ratio(tokens, held_out_s, tokens, plain_s))


def batch_table(lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Convert lengths at measured batch sizes to vLLM's ranges [first, last, length].

    A size that was not measured takes the length of the next larger measured size.

    >>> batch_table([(1, 5), (4, 5), (16, 2)])
    [[1, 4, 5], [5, 16, 2]]
    """
    table: list[list[int]] = []
    for size, length in lengths:
        if table and table[-1][2] == length:
            table[-1][1] = size
        else:
            table.append([table[-1][1] + 1 if table else 1, size, length])
    return table


def vllm(source: Source, length: int, by_batch: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """vLLM's ``speculative_config``.

    >>> vllm(Source("model", "small"), 3)
    {'method': 'draft_model', 'model': 'small', 'num_speculative_tokens': 3}
    """
    found: dict[str, Any] = {"method": source.kind}
    if source.kind == "lookup":
        shortest, longest = LOOKUP_NGRAMS
        found = {"method": "ngram", "prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    elif source.kind != "suffix":
        method = "draft_model" if source.kind == "model" else source.kind
        found = {"method": method, "model": source.path}
    found["num_speculative_tokens"] = max([length, *(each for _, each in by_batch)])
    if by_batch:
        found["num_speculative_tokens_per_batch_size"] = batch_table(by_batch)
    return found


def sglang(source: Source, length: int, by_batch: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """SGLang's adaptive config: one number of draft steps from each batch size upwards."""
    table = batch_table(by_batch) or [[1, 1, length]]
    return {
        "algorithm": source.kind.upper(),
        "head": source.path,
        "config": {str(first): {"candidate_steps": [steps]} for first, _, steps in table},
    }


def llama_cpp(source: Source, length: int, _: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """llama-server's flags."""
    most = {"--spec-draft-n-max": length}
    if source.kind == "lookup":
        sizes = {"n": LOOKUP_NGRAMS[1], "m": length}
        own = {f"--spec-ngram-simple-size-{name}": size for name, size in sizes.items()}
        return {"--spec-type": "ngram-simple", **own, **most}
    kind = "draft-simple" if source.kind == "model" else "draft-eagle3"
    return {"--model-draft": source.path, "--spec-type": kind, **most, "--spec-draft-p-min": 0}


def transformers(source: Source, length: int, _: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Options of ``model.generate`` and, for a draft model, of the assistant's generation config.

    >>> transformers(Source("lookup", "lookup"), 8)
    {'prompt_lookup_num_tokens': 8, 'max_matching_ngram_size': 8}
    """
    if source.kind == "lookup":
        return {"prompt_lookup_num_tokens": length, "max_matching_ngram_size": LOOKUP_NGRAMS[1]}
    config = {"num_assistant_tokens": length, "num_assistant_tokens_schedule": "constant"}
    config["assistant_confidence_threshold"] = 0.0
    return {"assistant_model": source.path, "assistant_generation_config": config}


SETTINGS = {"vllm": vllm, "sglang": sglang, "llama.cpp": llama_cpp, "transformers": transformers}


def _paste_sglang(setting: Mapping[str, Any]) -> str:
    return (
        f"--speculative-algorithm {setting['algorithm']} --speculative-draft-model-path "
        f"{shlex.quote(setting['head'])} --speculative-eagle-topk 1 --speculative-adaptive "
        "--speculative-adaptive-config adaptive.json\n"
        f"adaptive.json: {json.dumps(setting['config'])}"
    )


def _paste_transformers(setting: Mapping[str, Any]) -> str:
    if "assistant_model" not in setting:
        return f"model.generate(**inputs, {_arguments(setting)})"
    path, options = setting["assistant_model"], setting["assistant_generation_config"]
    return (
        f"assistant = AutoModelForCausalLM.from_pretrained({path!r}).to(model.device)\n"
        f"assistant.generation_config.update({_arguments(options)})\n"
        "model.generate(**inputs, assistant_model=assistant)"
    )


def _arguments(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


PASTE: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "vllm": lambda setting: f"--speculative-config {shlex.quote(json.dumps(setting))}",
    "sglang": _paste_sglang,
    "llama.cpp": lambda setting: shlex.join(str(part) for pair in setting.items() for part in pair),
    "transformers": _paste_transformers,
}


def _excludes(engine: str, source: Source | None, sizes: Sequence[int]) -> list[str]:
    found = ["prefill", "other hardware, and this engine's own kernels and scheduling"]
    if len(sizes) < 2:
        found.append("batches: only the batch sizes of the trace's requests were measured")
    elif engine in BATCHED:
        found.append(f"more than {sizes[-1]} requests: {engine} keeps the last length")
    if engine == "llama.cpp" and source is not None and source.kind == "lookup":
        simple = "llama.cpp's ngram-simple looks for n-grams of one length only"
        found.append(f"another search: {simple} ({LOOKUP_NGRAMS[1]} here)")
    return found


def _weights(engine: str, name: str, source: Source) -> tuple[str, list[str]]:
    """What the engine loads; if unknown, a placeholder and an instruction to replace it."""
    path, short, example, what = source.path, "PATH", "PATH", "the folder or hub id"
    if engine == "llama.cpp":
        path, short, example, what = source.gguf, "GGUF", "FILE.gguf", "a GGUF file"
    if path or source.kind in {"lookup", "suffix"}:
        return path, []
    mark, given = f"{short}-OF-{name}", f"--weights {name}={example}"
    return mark, [f"the weights of {name}: write {what} for {mark}, or give {given}"]


def with_weights(sources: Mapping[str, Source], weights: Sequence[str]) -> dict[str, Source]:
    """Add paths given as ``NAME=PATH`` to the sources. Errors: DraftwiseError for an unknown name.

    >>> with_weights({"small": Source("model")}, ["small=org/small", "small=small.gguf"])
    {'small': Source(kind='model', path='org/small', gguf='small.gguf')}
    """
    found = dict(sources)
    for text in weights:
        name, _, path = text.partition("=")
        if name not in found or not path:
            raise DraftwiseError(f"--weights {text}: write NAME=PATH for one of {', '.join(found)}")
        key = "gguf" if path.lower().endswith(".gguf") else "path"
        found[name] = replace(found[name], **{key: path})
    return found


def _guessed(name: str, trace: RoundTrace | None) -> Source:
    """Infer a drafter's kind from its name and scores; a trace does not contain its path."""
    if trace is not None and trace.is_retrieval(name):
        known = next((kind for kind in ("suffix", "datastore") if name.startswith(kind)), "lookup")
        return Source(known)
    return Source("eagle3" if "eagle" in name else "model")


def _speed(found: m.TextSums, seconds: Floats) -> dict[str, Any]:
    compared = ratio(found.tokens, seconds, found.tokens, found.plain_s)
    return {"tok_per_s": float(found.tokens.sum() / seconds.sum()), "speedup": compared.as_json()}


def check_engines(names: Sequence[str] | None) -> list[str]:
    """Return all engines, or the named ones. Errors: DraftwiseError for an unknown one."""
    for name in names or ():
        if name not in ENGINES:
            raise DraftwiseError(f"--for {name}: write one of {', '.join(ENGINES)}")
    return list(names or ENGINES)
