"""Random requests among faulty ones: does every answer equal plain decoding's?

In each trial about forty requests join, leave and fail in one engine on a tiny random model. They
use stop strings, penalties, biases, logits processors, log-probabilities, priorities, shared
prompts and tenants; some switch drafters, and some have policies, feedbacks, callbacks, prompts or
drafters that raise or return invalid values, or are cancelled. No request may disable a working
drafter for the others. An answer is right if each token is the argmax of one plain forward over
prompt and answer with the requested edits (so sampled requests have ``top_k=1``), and if it ends
where it must. A cancelled answer must be right up to its end. Ties: a token counts as the argmax if
its edited logit is within 1e-4 of the largest.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))  # before a benchmark named ``engine``

import numpy as np
import torch
from shared.script import run
from tests.engine.faults import NONSENSE, Faulty, Odd, raising
from tests.engine.pairs import reader
from tests.engine.scripted import byte_tokenizer
from transformers import CONFIG_MAPPING

from draftwise import Speculator
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.retrieval import LookupDrafter
from draftwise.engine.deciders import Bandits
from draftwise.engine.engine import Engine
from draftwise.engine.request import Request
from draftwise.nn.check import check_model
from draftwise.nn.model import CausalModel
from draftwise.nn.tiny import tiny_config, tiny_module
from draftwise.registry import Preset
from draftwise.types import Decision, SamplingParams
from models import CONFIGS, near_copy

KINDS = (*CONFIGS, "qwen3_next", "mamba2")
POLICIES = ("random", "goodput", "ucb1", "exp3")
ROWS, REQUESTS, MOST_TOKENS, MOST_STEPS = 6, 40, 12, 5000
GAP = 1e-4
TOKENIZER = byte_tokenizer()
POISON = [5, 4, 3, 2, 1, 0, 5]
"""Prefix of prompts on which the target's prefill raises."""


@cache
def model(kind: str) -> CausalModel:
    other = kind not in CONFIGS
    module = tiny_module(tiny_config(CONFIG_MAPPING[kind]())) if other else reader(kind)
    made = CausalModel(module, kind)
    check_model(made)
    extend = made.extend

    def failing(cache: Any, rows: Any, tokens: Any, *more: Any, **options: Any) -> Any:
        if any(list(fed[: len(POISON)]) == POISON for fed in tokens):
            raise RuntimeError("this prompt cannot be read")
        return extend(cache, rows, tokens, *more, **options)

    made.extend = failing  # type: ignore[method-assign]
    return made


@cache
def drafter(kind: str) -> LMDrafter:
    """The target with slightly perturbed weights."""
    made = CausalModel(near_copy(model(kind).module, noise=0.04), "good")
    check_model(made)  # finds the types whose rows run one at a time
    return LMDrafter("good", made, model(kind))


def process(text: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A valid logits processor: its penalties depend on the text's last token and length."""
    edited = logits.clone()
    edited[(text[-1] + len(text)) % 3 :: 3] -= 4.0
    return edited


FAULTS: dict[str, Callable[[], dict[str, Any]]] = {
    "process raises": lambda: {"sampling": SamplingParams(process=raising)},
    "process returns None": lambda: {"sampling": SamplingParams(process=lambda t, s: None)},
    "process returns too little": lambda: {"sampling": SamplingParams(process=lambda t, s: s[:5])},
    "stop_when raises": lambda: {"stop_when": raising},
    "stop_when returns an array": lambda: {"stop_when": lambda tokens: np.array([1, 2])},
}
"""Options that make their request fail."""
POLICY_FAULTS: tuple[tuple[str, Any], ...] = (
    ("choose", raising), ("choose", None), ("choose", Decision(99, 1.0, 1)),
    ("learn", raising), ("drafters_to_probe", raising), ("drafters_to_probe", 5),
    ("estimates", raising), ("estimates", None),
)  # fmt: skip
"""Policy faults, which disable their request's drafts and leave its text unchanged."""
SWITCHES: tuple[dict[str, Any], ...] = (
    {"speculation": False}, {"lengths": []}, {"max_draft": 0}, {"max_draft": 2},
    {"drafters": "lookup"},
)  # fmt: skip


class Trial:
    def __init__(self, number: int, seed: int) -> None:
        self.rng = random.Random(f"{seed}/{number}")
        self.kind = KINDS[number % len(KINDS)]
        self.target, self.counts = model(self.kind), Counter[str]()
        pool: list[Any] = [drafter(self.kind), LookupDrafter("lookup")]
        if self.rng.random() < 0.3:
            pool.append(Odd(NONSENSE[self.rng.choice(list(NONSENSE))]))
            self.counts["drafters that return nonsense"] += 1
        setting = Preset(self.rng.choice(POLICIES), "length", "free", (1, 4), True)
        self.made = Speculator(self.target, TOKENIZER, pool, setting, seed=number)
        self.wrong: list[str] = []
        self.shared = self.words(self.rng.randrange(34, 90))

    def words(self, num: int) -> list[int]:
        few = [self.rng.randrange(self.target.vocab_size) for _ in range(max(2, num // 3))]
        return [self.rng.choice(few) for _ in range(num)]

    def request(self) -> tuple[Request, dict[str, Any], str]:
        rng = self.rng
        prompt = self.words(rng.randrange(1, 60))
        if rng.random() < 0.4:
            prompt = [*self.shared, *prompt[: rng.randrange(6)]]
        options = {
            "max_new_tokens": rng.randrange(1, MOST_TOKENS + 1),
            "sampling": SamplingParams(**self.sampling()), "priority": rng.randrange(-1, 2),
            "private": rng.random() < 0.2, "ignore_eos": True, "seed": rng.randrange(1000),
        }  # fmt: skip
        if rng.random() < 0.3:
            options["stop"] = [rng.choice(["e", "a", "th", "日", "re.", "本é"])]
        if rng.random() < 0.2:
            options["logprobs"] = rng.randrange(3)
        if rng.random() < 0.2:
            options |= rng.choice(SWITCHES)
        fault = rng.choice([*FAULTS, "policy", "policy", "feedback", "prompt"])
        fault = fault if rng.random() < 0.25 else ""
        if fault == "prompt":
            prompt = [*POISON, *prompt]
        made = self.made.request(prompt, **(options | FAULTS.get(fault, dict)()))
        made.context.tenant = rng.choice("ab")
        if fault == "policy":
            policy = Faulty(made.decider.policy, *rng.choice(POLICY_FAULTS))
            made.decider.policy = policy  # type: ignore[assignment]
        elif fault == "feedback" and isinstance(made.decider, Bandits):
            feedback = Faulty(made.decider.feedback, "reveal", raising)
            made.decider.feedback = feedback  # type: ignore[assignment]
        return made, options, fault

    def sampling(self) -> dict[str, Any]:
        """Sampling parameters that allow only one next token."""
        rng, size = self.rng, self.target.vocab_size
        some: dict[str, Any] = {
            "repetition_penalty": rng.choice([0.8, 1.3]),
            "frequency_penalty": rng.choice([-0.5, 0.7]),
            "presence_penalty": 0.9,
            "logit_bias": {rng.randrange(size): rng.choice([-5.0, 3.0]) for _ in "abc"},
            "process": process,
        }
        found = {name: value for name, value in some.items() if rng.random() < 0.2}
        return found if rng.random() < 0.7 else {**found, "temperature": 1.0, "top_k": 1}

    def run(self) -> None:
        engine = self.made.engine(max_rows=ROWS, num_prefixes=2)
        everyone = [self.request() for _ in range(REQUESTS)]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.answer(engine, [made for made, _, _ in everyone])
        texts = [str(one.message) for one in said]
        self.wrong += [t for t in texts if "left out" in t and not t.startswith("drafter odd ")]
        self.counts["prefixes reused"] += engine.num_prefix_hits
        for made, options, fault in everyone:
            self.look_at(made, options, fault)
        engine.close()

    def answer(self, engine: Engine, waiting: list[Request]) -> None:
        steps = 0
        while waiting or engine.has_work:
            for _ in range(self.rng.randrange(4)):
                if waiting:
                    engine.admit(waiting.pop())
            if engine.running and self.rng.random() < 0.05:
                engine.cancel(self.rng.choice(engine.running).id)
            try:
                engine.step()
            except Exception as error:
                self.wrong.append(f"step raised {error!r}")
            if (steps := steps + 1) > MOST_STEPS:
                self.wrong.append("the engine never came to an end")
                break

    def look_at(self, made: Request, options: dict[str, Any], fault: str) -> None:
        reason, why = made.answer.finish_reason, ""
        if fault == "prompt" and reason != "error":
            fault = ""  # prefill chunks were too small to contain the faulty prefix
        if fault in FAULTS or fault == "prompt":
            self.counts[f"ended by its own {fault}"] += reason == "error"
            was_asked = not fault.startswith("stop_when") or made.answer.num_tokens > 1
            if reason not in {"error", "cancelled"} and was_asked:
                why = f"it ended with {reason}"
        else:
            is_whole = reason in {"length", "stop"}
            self.counts["answers" if is_whole else str(reason)] += 1
            if fault and is_whole:
                self.counts[f"answers whose own {fault} failed"] += 1
            self.counts.update(drafted=made.stats.num_drafted, accepted=made.stats.num_accepted)
            why = f"it ended with {reason}: {made.error!r}"
            if is_whole or reason == "cancelled":
                why = differs(self.target, made, options)
        if why:
            self.wrong.append(f"{self.kind}, {fault or 'sound'}: {why}; {options}")


@torch.inference_mode()
def differs(target: CausalModel, made: Request, options: dict[str, Any]) -> str:
    """How an answer differs from plain decoding; empty if it does not."""
    prompt, tokens = list(made.prompt), made.tokens
    text = torch.tensor([[*prompt, *tokens]], device=target.device)
    logits = target.module(input_ids=text, use_cache=False).logits[0].float()
    for place, token in enumerate(tokens):
        raw = logits[len(prompt) + place - 1]
        scores = edited(raw, options["sampling"], prompt, tokens[:place])
        if float(scores.max() - scores[token]) > GAP * float(raw.abs().max()):
            return f"token {place} is {token}, not {int(scores.argmax())}"
        if options.get("logprobs") is not None:
            off = made.logprobs[place].logprob - float(raw.log_softmax(-1)[token])
            if made.logprobs[place].token != token or abs(off) > 1e-3:
                return f"the log-probability of token {place} is off by {off:.2g}"
    return ends_wrong(made, options)


def edited(
    raw: torch.Tensor, sampling: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> torch.Tensor:
    """[V] logits after all edits, applied one at a time as a plain reference."""
    scores = raw.clone()
    if sampling.process is not None:
        scores = sampling.process([*prompt, *answer], scores)
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    for token in {*prompt, *answer}:
        penalty = sampling.repetition_penalty
        scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
    for token, times in Counter(answer).items():
        scores[token] -= sampling.frequency_penalty * times + sampling.presence_penalty
    return scores


def ends_wrong(made: Request, options: dict[str, Any]) -> str:
    """How the end of an answer or its text is wrong; empty if it is right."""
    tokens, reason, stops = made.tokens, made.answer.finish_reason, options.get("stop", [])
    texts = [TOKENIZER.decode(tokens[:num]) for num in range(len(tokens) + 1)]
    first = next((n for n, t in enumerate(texts) if any(stop in t for stop in stops)), None)
    expected = min([texts[-1].partition(stop)[0] for stop in stops] or [texts[-1]], key=len)
    if first is not None and (first != len(tokens) or reason != "stop"):
        return f"a stop string is complete after {first} of {len(tokens)} tokens ({reason})"
    if first is None and reason == "stop":
        return "it stopped without a stop string"
    if reason == "length" and len(tokens) != options["max_new_tokens"]:
        return f"it has {len(tokens)} tokens of {options['max_new_tokens']}"
    return "" if made.answer.text == expected else f"its text is {made.answer.text!r}"


def fuzz(args: argparse.Namespace) -> dict[str, Any]:
    """Run trials until ``--num`` answers have been checked."""
    warnings.simplefilter("ignore")  # warnings about each faulty request and drafter are expected
    start, counts, wrong = time.monotonic(), Counter[str](), list[str]()
    while counts["answers"] < args.num:
        trial = Trial(counts["trials"], args.seed)
        trial.run()
        counts.update(trial.counts, trials=1)
        wrong += trial.wrong
        if counts["trials"] % 10 == 0:
            said = f"{counts['answers']} answers, {len(wrong)} wrong"
            print(f"{counts['trials']} trials: {said}", flush=True)
    found = {"num_wrong": len(wrong), "wrong": wrong[:20], "counts": dict(sorted(counts.items()))}
    took_s = round(time.monotonic() - start)
    return {**found, "kinds": KINDS, "took_s": took_s, "failed": bool(wrong)}


if __name__ == "__main__":
    run(__doc__, fuzz, num={"type": int, "default": 5000, "help": "answers to look at"}, seed=0)
